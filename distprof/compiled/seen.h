/* Caches of one scan: what is equal to text that was read before is not read again.
 *
 * Events look alike. Between the values that differ, names and times, stands the same text again and again
 * (`",\n    "pid": 7,\n    "tid": 7,\n    "ts": `), and behind one such Gap mostly one of those that came behind it before.
 * Most of the arguments of an operator are those that it had the last time: Args. All pointers are into the text of the
 * scan, so that nothing is kept from one scan to the next.
 *
 * A comparison that fails costs a few instructions, and the text is then read as if there were no cache. Nothing that was
 * odd (flags) is ever remembered, so that what is skipped is known to be strict JSON.
 */

enum {
    NO_GAP = 0,       /* before the brace of an event */
    FIRST_GAPS = 8,   /* numbers below are of gaps with this brace */
    GAPS = 64,        /* numbers below are of gaps that are remembered */
    EXPECTED = 4,     /* gaps that are expected behind one */
    LONGEST_GAP = 512,
    MEMBERS = 12,     /* arguments of an event that are remembered */
    USUAL_ARGS = 256, /* names of events whose arguments are remembered, by a hash */
    USUAL_NAMES = 1024,
};

/* Where a value stands in a gap. */
typedef struct {
    int32_t offset, len;
} Place;

typedef struct {
    const uint8_t *at; /* from behind a value, or from the brace of the event, up to the next value that differs */
    int32_t len;       /* 0: nothing was seen */
    int32_t which;     /* the field that this value is of; NO_FIELD where it is the end of the event, behind its brace */
    Place pid, tid, scope, category; /* values in between, those that are there */
    int32_t phase;              /* -1: not there */
    int32_t thread, category_number; /* of these values; -1: not known yet */
    uint8_t set, cleared;       /* flags that come of them */
    uint8_t turn;               /* which one of `next` is overwritten next */
    uint8_t next[EXPECTED];     /* numbers of gaps behind it; 0: none */
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
    const uint8_t *at;
    int32_t len, number;
} Name;

typedef struct {
    Text last[2];    /* pid and tid of the event before */
    int32_t last_thread;   /* number of that thread, -1 at first */
    int32_t last_number;   /* number of the category of the event before */
    Text last_category;
    uint32_t num_first, num_others; /* gaps that were remembered so far */
    Gap gaps[GAPS + 1]; /* the last one is any that is not remembered */
    Args args[USUAL_ARGS];   /* by name */
    Name names[USUAL_NAMES];
} Seen;
