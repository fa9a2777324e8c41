/* Caches of one scan: what is equal to text that was read before, in the same place, is not read again.
 *
 * Events look alike. Between their values stands the same text again and again (`,\n    "tid": `): a Gap. Most of the
 * arguments of an operator are those that it had the last time: Args. A thread and a category are mostly those of the
 * event before. All pointers are into the text of the scan, so that nothing is kept from one scan to the next.
 *
 * A comparison that fails costs a few instructions, and the text is then read as if there were no cache. Nothing that was
 * odd (flags) is ever remembered, so that what is skipped is known to be strict JSON.
 */

enum {
    SLOTS = 16,       /* fields of an event whose gaps are remembered */
    SHAPES = 9,       /* kinds of events: the phase is not known yet, or its last three bits */
    MEMBERS = 12,     /* arguments of an event that are remembered */
    USUAL_ARGS = 256, /* names of events whose arguments are remembered, by a hash */
};

typedef struct {
    const uint8_t *at; /* from behind a value, or from the brace of the event, up to the next value */
    int32_t len;       /* 0: nothing was seen */
    int32_t which;     /* the field that the next value is of */
} Gap;

typedef struct {
    int32_t begin, value, end; /* from the brace of the object on: behind the comma before, the value, behind the comma */
    int32_t wanted;            /* number of the column that it is, or -1 */
} Member;

typedef struct {
    const uint8_t *at; /* the brace of an object without anything odd; NULL: none was seen */
    int32_t row, count;
    Member members[MEMBERS];
} Args;

typedef struct {
    Text last[2];    /* pid and tid of the event before */
    int is_plain[2]; /* they are digits, and few: what is equal to them needs no look */
    int32_t last_thread;   /* number of that thread, -1 at first */
    int32_t last_number;   /* number of the category of the event before */
    Text last_category;
    Gap gaps[SHAPES][SLOTS]; /* by phase, as far as it is known, and by place in the event */
    Args args[USUAL_ARGS];   /* by name */
} Seen;
