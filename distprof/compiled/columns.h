/* What a scan finds: an event is a row, and each field of it an array that Python owns. */

#define NONE INT64_MIN /* in a column of integers: not there */
#define LATEST (INT64_C(1) << 62) /* times are below, in ns: the year 2116; two of them can be added */
#define NO_ARROW 2 /* in the column `keep`: a slice is kept without the arrow of its bind_id */

/* Flags of an event. */
enum {
    REPAIR = 1,     /* strict JSON that every viewer reads needs a rewrite */
    BAD_TIME = 2,   /* ts or dur is no number, or LATEST or more */
    GLOBAL = 4,     /* an instant of scope g */
    NON_ASCII = 8,  /* bytes above 127: UTF-8 or nothing */
    ENCLOSING = 16, /* the end of an arrow that belongs to the slice around it, not to the next one */
    FLOW_IN = 32,   /* it has a bind_id, and the arrow of that comes to it */
    FLOW_OUT = 64,  /* or begins here */
};

/* Fields whose place in the text is kept. */
enum { PID, TID, TS, DUR, ID, ID2, BIND_ID, SCOPE, ARGS, NUM_SPANS };

/* How a scan ended. */
enum { MORE, ENDED, FULL, MALFORMED, NO_MEMORY };

typedef struct Interner Interner;

typedef struct {
    const uint8_t *at;
    int64_t len;
} Text;

/* A key of `args` that becomes a column: an integer, or an interned text (strings without quotes, the rest as it is). */
typedef struct {
    const char *key;
    int32_t len;
    int32_t is_text;
    int64_t *integers;
    int32_t *texts;
    const uint8_t *found_at; /* a text of the event being read that is interned once the event is whole, or NULL */
    int64_t found_len;
} Wanted;

typedef struct {
    int64_t max_rows;
    int64_t num_rows;
    int32_t *start, *end;    /* where the event stands in the text */
    int32_t *spans;          /* NUM_SPANS x (offset, length) a row; length 0: not there */
    int64_t *ts_ns, *dur_ns; /* NONE: not there */
    int32_t *name, *category, *thread;
    uint8_t *phase, *flags;
    Interner *names, *categories, *threads;
    int32_t num_wanted;
    int32_t skims;           /* args may be passed over by their layout: what is wrong inside goes unseen; not if any of
                                it is wanted */
    Wanted *wanted;
    Interner *texts;
    int64_t recovers;        /* reading goes on behind damage, which is counted */
    int64_t num_damaged, lost_bytes;
    int64_t has_found;       /* a wanted text of the event being read has a found_at */
} Columns;
