/* Chrome trace events at the speed of memory: text comes in, columns and rewritten text go out.
 *
 * Knows JSON, not Kineto: any key order, any layout. Never recurses, never reads behind the text it is given, allocates
 * only in the interner. merge/reference.py does the same in Python, and is what this is tested against.
 *
 * An event is an object as RFC 8259 has it. What programs write beside the letter of it is read too, and flagged REPAIR:
 * NaN and infinities, integers above 64 bits, numbers like 01 +1 .5 5., a comma too many before } or ], control characters
 * and unknown escapes in strings. All else is damage, as are values nested deeper than DEEPEST.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define NONE INT64_MIN
#define DEEPEST 256                 /* no event nests so deep, and no viewer would follow */
#define LATEST (INT64_C(1) << 62)   /* times are below, in ns: the year 2116; two of them can be added */

/* What a byte is inside a string: 0 goes on, 1 ends it, 2 escapes, 3 must not stand there. */
static const uint8_t IN_STRING[256] = {
    3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3,
    ['"'] = 1, ['\\'] = 2,
};

static const uint8_t IN_SCALAR[256] = {
    ['0'] = 1, ['1'] = 1, ['2'] = 1, ['3'] = 1, ['4'] = 1, ['5'] = 1, ['6'] = 1, ['7'] = 1, ['8'] = 1, ['9'] = 1,
    ['.'] = 1, ['-'] = 1, ['+'] = 1,
    ['a'] = 1, ['b'] = 1, ['c'] = 1, ['d'] = 1, ['e'] = 1, ['f'] = 1, ['g'] = 1, ['h'] = 1, ['i'] = 1, ['j'] = 1,
    ['k'] = 1, ['l'] = 1, ['m'] = 1, ['n'] = 1, ['o'] = 1, ['p'] = 1, ['q'] = 1, ['r'] = 1, ['s'] = 1, ['t'] = 1,
    ['u'] = 1, ['v'] = 1, ['w'] = 1, ['x'] = 1, ['y'] = 1, ['z'] = 1,
    ['A'] = 1, ['B'] = 1, ['C'] = 1, ['D'] = 1, ['E'] = 1, ['F'] = 1, ['G'] = 1, ['H'] = 1, ['I'] = 1, ['J'] = 1,
    ['K'] = 1, ['L'] = 1, ['M'] = 1, ['N'] = 1, ['O'] = 1, ['P'] = 1, ['Q'] = 1, ['R'] = 1, ['S'] = 1, ['T'] = 1,
    ['U'] = 1, ['V'] = 1, ['W'] = 1, ['X'] = 1, ['Y'] = 1, ['Z'] = 1,
};

/* flags of an event */
enum {
    REPAIR = 1,     /* strict JSON that every viewer reads needs a rewrite */
    BAD_TIME = 2,   /* ts or dur is no number, or LATEST or more */
    GLOBAL = 4,     /* an instant of scope g */
    NON_ASCII = 8,  /* bytes above 127: UTF-8 or nothing */
    ENCLOSING = 16, /* the end of an arrow that belongs to the slice around it, not to the next one */
    FLOW_IN = 32,   /* a slice to which the arrow of its bind_id comes */
    FLOW_OUT = 64,  /* or from which */
};

/* fields whose place in the text is kept */
enum { PID, TID, TS, DUR, ID, ID2, BIND_ID, SCOPE, ARGS, NUM_SPANS };

#define NO_ARROW 2 /* of what is kept: a slice, without the arrow of its bind_id */

enum { MORE, ENDED, FULL, MALFORMED, NO_MEMORY };

#ifndef SOURCE_ID
#define SOURCE_ID 0
#endif
uint32_t source_id(void) { return SOURCE_ID; }

static uint64_t load(const uint8_t *p) {
    uint64_t word;
    memcpy(&word, p, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

static inline __attribute__((always_inline)) int same(const uint8_t *a, const uint8_t *b, int64_t n) {
    if (n < 4) {
        for (; n; n--)
            if (*a++ != *b++) return 0;
        return 1;
    }
    if (n < 8) return !memcmp(a, b, 4) && !memcmp(a + n - 4, b + n - 4, 4);
    int64_t i = 0;
#ifdef __SSE2__
    for (; i + 16 <= n; i += 16) {
        __m128i equal = _mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)(a + i)), _mm_loadu_si128((const __m128i *)(b + i)));
        if (_mm_movemask_epi8(equal) != 0xFFFF) return 0;
    }
#endif
    for (; i + 8 <= n; i += 8)
        if (load(a + i) != load(b + i)) return 0;
    return load(a + n - 8) == load(b + n - 8);
}

/* ---- interner: equal bytes get equal numbers, counted from 0 in order of first appearance -------------------------- */

typedef struct {
    uint64_t *hashes; /* 0 is free */
    int32_t *slots;
    int64_t mask;
    int64_t count;
    int64_t *ends; /* of each string in the arena */
    int64_t max_count;
    uint8_t *arena;
    int64_t arena_size;
    int64_t failed; /* there was no memory for a string once: its number was -1 */
} Interner;

void interner_free(Interner *in) {
    free(in->hashes), free(in->slots), free(in->ends), free(in->arena), free(in);
}

Interner *interner_new(void) {
    Interner *in = calloc(1, sizeof *in);
    if (!in) return NULL;
    in->mask = 1023;
    in->hashes = calloc(1024, sizeof *in->hashes);
    in->slots = malloc(1024 * sizeof *in->slots);
    in->max_count = 512;
    in->ends = malloc(512 * sizeof *in->ends);
    in->arena_size = 1 << 14;
    in->arena = malloc(in->arena_size);
    if (in->hashes && in->slots && in->ends && in->arena) return in;
    return interner_free(in), NULL;
}

int64_t interner_count(const Interner *in) { return in->count; }
const uint8_t *interner_arena(const Interner *in) { return in->arena; }
const int64_t *interner_ends(const Interner *in) { return in->ends; }

static uint64_t hash_of(const uint8_t *s, int64_t n) {
    uint64_t h = 0x9e3779b97f4a7c15u ^ (uint64_t)n, w = 0;
    const uint8_t *end = s + n;
    for (; end - s > 8; s += 8) {
        memcpy(&w, s, 8);
        h = (h ^ w) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    if (n >= 8) memcpy(&w, end - 8, 8); /* some of it twice: faster than a part of a word */
    else for (w = 0; s < end; s++) w = w << 8 | *s;
    h = (h ^ w) * 0xc4ceb9fe1a85ec53u;
    h ^= h >> 29;
    return h ? h : 1;
}

static int grow(Interner *in) {
    int64_t size = 2 * (in->mask + 1);
    uint64_t *hashes = calloc(size, sizeof *hashes);
    int32_t *slots = malloc(size * sizeof *slots);
    int64_t *ends = realloc(in->ends, size / 2 * sizeof *ends);
    if (ends) in->ends = ends;
    if (!hashes || !slots || !ends) return free(hashes), free(slots), 0;
    for (int64_t i = 0; i <= in->mask; i++)
        if (in->hashes[i]) {
            int64_t at = in->hashes[i] & (size - 1);
            while (hashes[at]) at = (at + 1) & (size - 1);
            hashes[at] = in->hashes[i], slots[at] = in->slots[i];
        }
    free(in->hashes), free(in->slots);
    in->hashes = hashes, in->slots = slots, in->mask = size - 1, in->max_count = size / 2;
    return 1;
}

int32_t interner_add(Interner *in, const uint8_t *s, int64_t n) {
    uint64_t h = hash_of(s, n);
    int64_t at = h & in->mask;
    for (; in->hashes[at]; at = (at + 1) & in->mask)
        if (in->hashes[at] == h) {
            int32_t i = in->slots[at];
            int64_t from = i ? in->ends[i - 1] : 0;
            if (in->ends[i] - from == n && same(in->arena + from, s, n)) return i;
        }
    if (in->count == in->max_count) {
        if (in->count >= INT32_MAX / 2 || !grow(in)) return in->failed = 1, -1;
        for (at = h & in->mask; in->hashes[at];) at = (at + 1) & in->mask;
    }
    int64_t from = in->count ? in->ends[in->count - 1] : 0;
    if (n > in->arena_size - from) {
        int64_t size = 2 * (from + n);
        uint8_t *arena = realloc(in->arena, size);
        if (!arena) return in->failed = 1, -1;
        in->arena = arena, in->arena_size = size;
    }
    memcpy(in->arena + from, s, n);
    in->ends[in->count] = from + n;
    in->hashes[at] = h, in->slots[at] = (int32_t)in->count;
    return (int32_t)in->count++;
}

/* ---- scanning ------------------------------------------------------------------------------------------------------ */

#define EACH(byte) (UINT64_C(0x0101010101010101) * (byte))

/* The high bit of each byte below `limit` (at most 128); right up to the first such byte, which is all that is asked. */
static uint64_t below(uint64_t word, uint8_t limit) { return (word - EACH(limit)) & ~word & EACH(0x80); }

static const uint8_t *blank(const uint8_t *p, const uint8_t *end) {
    for (;;) {
        if (p >= end || *p > ' ') return p;
        if (*p != ' ' && *p != '\n' && *p != '\t' && *p != '\r') return p;
        p++;
        while (end - p >= 8 && load(p) == EACH(' ')) p += 8;
    }
}

/* What stands behind a backslash. Perfetto takes no surrogates that are escaped, and half ones are no text at all. */
static int is_escape(const uint8_t *p, const uint8_t *end) {
    switch (*p) {
    case '"': case '\\': case '/': case 'b': case 'f': case 'n': case 'r': case 't': return 1;
    case 'u': break;
    default: return 0;
    }
    if (end - p < 5) return 0;
    for (int i = 1; i < 5; i++)
        if ((p[i] < '0' || p[i] > '9') && ((p[i] | 32) < 'a' || (p[i] | 32) > 'f')) return 0;
    return (p[1] | 32) != 'd' || p[2] < '8';
}

/* p is behind the opening quote; gives the closing one, or NULL where the text ends before. */
static const uint8_t *string_end(const uint8_t *p, const uint8_t *end, uint8_t *flags) {
    for (;;) {
#ifdef __SSE2__
        while (end - p >= 16) { /* the same as below with wider words */
            __m128i word = _mm_loadu_si128((const __m128i *)p);
            __m128i odd = _mm_or_si128(_mm_cmpeq_epi8(word, _mm_set1_epi8('"')), _mm_cmpeq_epi8(word, _mm_set1_epi8('\\')));
            odd = _mm_or_si128(odd, _mm_cmpeq_epi8(_mm_min_epu8(word, _mm_set1_epi8(31)), word));
            uint32_t found = _mm_movemask_epi8(odd), high = _mm_movemask_epi8(word);
            if (found) {
                int until = __builtin_ctz(found);
                if (high & ((UINT32_C(1) << until) - 1)) *flags |= NON_ASCII;
                p += until;
                goto odd;
            }
            if (high) *flags |= NON_ASCII;
            p += 16;
        }
#endif
        while (end - p >= 8) {
            uint64_t word = load(p);
            uint64_t found = below(word ^ EACH('"'), 1) | below(word ^ EACH('\\'), 1) | below(word, 32);
            if (found) {
                int until = __builtin_ctzll(found) & ~7;
                if (word & EACH(0x80) & ((UINT64_C(1) << until) - 1)) *flags |= NON_ASCII;
                p += until >> 3;
                goto odd;
            }
            if (word & EACH(0x80)) *flags |= NON_ASCII;
            p += 8;
        }
        for (; p < end && !IN_STRING[*p]; p++)
            if (*p & 0x80) *flags |= NON_ASCII;
        if (p >= end) return NULL;
    odd:
        if (*p == '"') return p;
        if (*p == '\\') {
            if (end - p < 2) return NULL;
            if (!is_escape(p + 1, end)) *flags |= p[1] & 0x80 ? REPAIR | NON_ASCII : REPAIR;
            p += 2;
        } else {
            *flags |= REPAIR;
            p++;
        }
    }
}

static int is_above_64_bits(const uint8_t *p, int64_t n) {
    int negative = n && *p == '-';
    p += negative, n -= negative;
    if (n < 19) return 0;
    for (int64_t i = 0; i < n; i++)
        if (p[i] < '0' || p[i] > '9') return 0;
    return n > 19 || memcmp(p, negative ? "9223372036854775808" : "9223372036854775807", 19) > 0;
}

static const uint8_t *digits(const uint8_t *p, const uint8_t *end) {
    while (p < end && *p >= '0' && *p <= '9') p++;
    return p;
}

/* Behind a number as strict JSON has it; `end` where it may go on behind the text; NULL where it is none. */
static const uint8_t *number_end(const uint8_t *p, const uint8_t *end) {
    p += *p == '-';
    const uint8_t *from = p;
    p = digits(p, end);
    if (p == from || (*from == '0' && p - from > 1)) return p == end ? end : NULL;
    if (p < end && *p == '.') {
        from = ++p, p = digits(p, end);
        if (p == from) return p == end ? end : NULL;
    }
    if (p < end && (*p | 32) == 'e') {
        p++;
        if (p < end && (*p == '-' || *p == '+')) p++;
        from = p, p = digits(p, end);
        if (p == from) return p == end ? end : NULL;
    }
    return p < end && IN_SCALAR[*p] ? NULL : p;
}

static int is_word(const uint8_t *p, int64_t n, const char *lower) {
    if ((int64_t)strlen(lower) != n) return 0;
    for (int64_t i = 0; i < n; i++)
        if ((p[i] | 32) != lower[i]) return 0;
    return 1;
}

/* Numbers that strict JSON has not: NaN, infinities, 01, +1, .5, 5. */
static int is_loose_number(const uint8_t *p, const uint8_t *end) {
    p += *p == '-' || *p == '+';
    if (is_word(p, end - p, "nan") || is_word(p, end - p, "inf") || is_word(p, end - p, "infinity")) return 1;
    const uint8_t *from = p;
    p = digits(p, end);
    int64_t count = p - from;
    if (p < end && *p == '.') from = ++p, p = digits(p, end), count += p - from;
    if (!count) return 0;
    if (p < end && (*p | 32) == 'e') {
        p++;
        p += p < end && (*p == '-' || *p == '+');
        from = p, p = digits(p, end);
        if (p == from) return 0;
    }
    return p == end;
}

/* A number, true, false, null; NULL where it may go on behind the text. Sets *ok to 0 where it is none of these. */
static const uint8_t *scalar_end(const uint8_t *p, const uint8_t *end, uint8_t *flags, int *ok) {
    const uint8_t *from = p;
    if (*p <= '9') {
        const uint8_t *behind = number_end(p, end);
        if (behind == end) return NULL;
        if (behind) {
            if (behind - from >= 19 && is_above_64_bits(from, behind - from)) *flags |= REPAIR;
            return behind;
        }
    }
    while (p < end && IN_SCALAR[*p]) p++;
    if (p >= end) return NULL;
    int64_t n = p - from;
    if ((n == 4 && (!memcmp(from, "null", 4) || !memcmp(from, "true", 4))) || (n == 5 && !memcmp(from, "false", 5)))
        return p;
    if (n && is_loose_number(from, p)) *flags |= REPAIR;
    else *ok = 0;
    return p;
}

/* Behind the colon of the key at p, which ends before *stop; NULL where the text ends before. */
static const uint8_t *key_end(const uint8_t *p, const uint8_t *end, const uint8_t **stop, uint8_t *flags, int *ok) {
    if (*p != '"') return *ok = 0, p;
    *stop = string_end(p + 1, end, flags);
    if (!*stop) return NULL;
    p = blank(*stop + 1, end);
    if (p >= end) return NULL;
    if (*p != ':') return *ok = 0, p;
    return p + 1;
}

/* Any value, which may nest `deepest` levels; NULL where the text ends inside of it. *ok becomes 0 where it is no JSON. */
static const uint8_t *value_end(const uint8_t *p, const uint8_t *end, int deepest, uint8_t *flags, int *ok) {
    uint64_t objects[DEEPEST / 64] = {0}; /* a bit a level: it is no array */
    const uint8_t *stop;
    int depth = 0;
    for (;;) {
        p = blank(p, end);
        if (p >= end) return NULL;
        if (*p == '"') {
            p = string_end(p + 1, end, flags);
            if (!p) return NULL;
            p++;
        } else if (*p == '{' || *p == '[') {
            if (depth == deepest) return *ok = 0, p;
            uint64_t bit = UINT64_C(1) << (depth % 64), is_object = *p == '{';
            objects[depth / 64] = is_object ? objects[depth / 64] | bit : objects[depth / 64] & ~bit;
            depth++;
            p = blank(p + 1, end);
            if (p >= end) return NULL;
            if (*p == (is_object ? '}' : ']')) {
                depth--, p++;
            } else {
                if (is_object) p = key_end(p, end, &stop, flags, ok);
                if (!p || !*ok) return p;
                continue;
            }
        } else {
            p = scalar_end(p, end, flags, ok);
            if (!p || !*ok) return p;
        }
        for (;;) { /* behind a value */
            if (!depth) return p;
            int is_object = objects[(depth - 1) / 64] >> ((depth - 1) % 64) & 1, comma = 0;
            p = blank(p, end);
            if (p < end && *p == ',') comma = 1, p = blank(p + 1, end);
            if (p >= end) return NULL;
            if (*p == (is_object ? '}' : ']')) {
                if (comma) *flags |= REPAIR;
                depth--, p++;
                continue;
            }
            if (!comma) return *ok = 0, p;
            if (is_object) p = key_end(p, end, &stop, flags, ok);
            if (!p || !*ok) return p;
            break;
        }
    }
}

static int add_digit(int64_t *value, int digit) {
    if (*value > LATEST / 10) return 0;
    *value = 10 * *value + digit;
    return *value < LATEST;
}

/* Microseconds, in any notation and quoted or not -> exact nanoseconds, what is less left out. 0 where it is no number,
 * or LATEST or more. */
static int nanoseconds(const uint8_t *p, int64_t n, int64_t *ns) {
    if (n >= 2 && *p == '"' && p[n - 1] == '"') p++, n -= 2;
    const uint8_t *end = p + n;
    int negative = p < end && *p == '-';
    p += negative;
    const uint8_t *whole = p, *fraction = p = digits(p, end);
    int64_t before = p - whole, behind = 0;
    if (p < end && *p == '.') fraction = ++p, p = digits(p, end), behind = p - fraction;
    if (!(before + behind)) return 0;
    int64_t exponent = 0;
    if (p < end && (*p | 32) == 'e') {
        p++;
        int minus = p < end && *p == '-';
        p += minus || (p < end && *p == '+');
        if (p == end) return 0;
        for (; p < end && *p >= '0' && *p <= '9'; p++)
            if (exponent < INT64_C(1) << 40) exponent = exponent * 10 + (*p - '0');
        if (minus) exponent = -exponent;
    }
    if (p != end) return 0;
    int64_t value = 0, left = before + exponent + 3; /* so many digits make whole nanoseconds */
    for (p = whole; before && left > 0; before--, left--)
        if (!add_digit(&value, *p++ - '0')) return 0;
    for (p = fraction; behind && left > 0; behind--, left--)
        if (!add_digit(&value, *p++ - '0')) return 0;
    for (; value && left > 0; left--)
        if (!add_digit(&value, 0)) return 0;
    *ns = negative ? -value : value;
    return 1;
}

/* An integer, quoted or not; NONE where it is none, or no 64 bits hold it. */
static int64_t integer(const uint8_t *p, int64_t n) {
    if (n >= 2 && *p == '"' && p[n - 1] == '"') p++, n -= 2;
    int negative = n && *p == '-';
    p += negative, n -= negative;
    if (n < 1) return NONE;
    int64_t value = 0;
    for (int64_t i = 0; i < n; i++) {
        int digit = p[i] - '0';
        if (digit < 0 || digit > 9 || value > (INT64_MAX - digit) / 10) return NONE;
        value = value * 10 + digit;
    }
    return negative ? -value : value;
}

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
} Columns;

/* ---- what was seen before --------------------------------------------------------------------------------------------
 *
 * Events look alike: between their values stands the same text again and again, and most of the arguments of an operator
 * are those that it had before. What is equal to text that was read before, in the same place, is not read again. All of
 * this is of one scan: pointers are into its text. */

enum { SLOTS = 16, SHAPES = 9, MEMBERS = 12, USUAL_ARGS = 256 };

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
    Text last[2];    /* pid and tid of the last event */
    int is_plain[2]; /* they are digits, and few: what is equal to them needs no look */
    int32_t last_thread;
    int32_t last_number; /* of the last category */
    Text last_category;
    Gap gaps[SHAPES][SLOTS]; /* by phase, as far as it is known, and by place in the event */
    Args args[USUAL_ARGS];   /* by name */
} Seen;

/* The digits that p begins with, at most eight, at once: gives how many, and their value. */
static int some_digits(const uint8_t *p, int64_t *value) {
    uint64_t word = load(p);
    uint64_t odd = ((word & EACH(0xF0)) | ((word + EACH(6)) & EACH(0xF0)) >> 4) ^ EACH(0x33); /* right up to the first */
    int count = odd ? __builtin_ctzll(odd) >> 3 : 8;
    if (!count) return 0;
    word = (word << (64 - 8 * count) & EACH(0x0F)) * (10 << 8 | 1) >> 8 & UINT64_C(0x00FF00FF00FF00FF);
    word = word * (100 << 16 | 1) >> 16 & UINT64_C(0x0000FFFF0000FFFF);
    *value = (int64_t)(word * (UINT64_C(10000) << 32 | 1) >> 32);
    return count;
}

/* Behind a number of at most 15 digits before the point and 3 behind it, which must be there in full if any is; its
 * thousandfold goes to *value. NULL where it takes a closer look. */
static const uint8_t *usual_number(const uint8_t *p, const uint8_t *end, int64_t *value) {
    if (end - p < 32) return NULL;
    static const int64_t tens[] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000};
    int64_t number, more;
    int count = some_digits(p, &number);
    if (!count || (*p == '0' && count > 1)) return NULL;
    p += count;
    if (count == 8 && (count = some_digits(p, &more))) {
        if (count == 8) return NULL;
        number = number * tens[count] + more, p += count;
    }
    number *= 1000;
    if (*p == '.') {
        int a = p[1] - '0', b = p[2] - '0', c = p[3] - '0';
        if (a < 0 || a > 9 || b < 0 || b > 9 || c < 0 || c > 9) return NULL;
        number += 100 * a + 10 * b + c, p += 4;
    }
    if (IN_SCALAR[*p]) return NULL;
    *value = number;
    return p;
}

static void forget_wanted(Columns *c) {
    for (int32_t i = 0; i < c->num_wanted; i++) {
        Wanted *w = &c->wanted[i];
        if (!w->is_text) w->integers[c->num_rows] = NONE;
        else w->texts[c->num_rows] = -1, w->found_at = NULL;
    }
}

/* The number of the column that a key of `args` is, or -1. */
static int32_t wanted_of(const Columns *c, const uint8_t *key, int64_t len) {
    for (int32_t i = 0; i < c->num_wanted; i++)
        if (c->wanted[i].len == len && !memcmp(c->wanted[i].key, key, len)) return i;
    return -1;
}

static void keep_wanted(Wanted *w, int64_t row, const uint8_t *value, int64_t len) {
    if (w->is_text) {
        int quoted = *value == '"';
        w->found_at = value + quoted, w->found_len = len - 2 * quoted;
    } else {
        w->integers[row] = integer(value, len);
    }
}

static void keep_known(Wanted *w, int64_t row, int64_t earlier) {
    if (w->is_text) w->texts[row] = w->texts[earlier], w->found_at = NULL;
    else w->integers[row] = w->integers[earlier];
}

/* Of two equal keys the second counts: then a column does not say what the first one was. */
static int is_distinct(const Args *args) {
    for (int32_t i = 0; i < args->count; i++)
        for (int32_t j = 0; j < i; j++)
            if (args->members[i].wanted >= 0 && args->members[i].wanted == args->members[j].wanted) return 0;
    return 1;
}

/* Like value_end for an object of which some values become columns; `seen` is one that may be like it. */
static const uint8_t *read_args(const uint8_t *from, const uint8_t *end, Columns *c, Args *seen, uint8_t *flags, int *ok) {
    Args fresh; /* most of it is never looked at */
    fresh.at = from, fresh.row = (int32_t)c->num_rows, fresh.count = 0;
    uint8_t odd = 0;
    int is_new = 0; /* there is a member that `seen` has not */
    const uint8_t *p = from + 1;
    for (;;) {
        const Member *like = seen->at && fresh.count < seen->count ? &seen->members[fresh.count] : NULL;
        const uint8_t *begin = p, *value = NULL;
        int32_t wanted = -1;
        if (like && end - p > like->end - like->begin && same(p, seen->at + like->begin, like->value - like->begin)) {
            value = p + (like->value - like->begin), wanted = like->wanted;
            if (same(value, seen->at + like->value, like->end - like->value)) {
                if (wanted >= 0) keep_known(&c->wanted[wanted], c->num_rows, seen->row);
                p += like->end - like->begin;
                goto keep;
            }
            value = blank(value, end);
        } else {
            is_new = 1;
            p = blank(p, end);
            if (p >= end) return NULL;
            if (*p == '}') {
                if (fresh.count) odd |= REPAIR;
                p++;
                break;
            }
            const uint8_t *key = p + 1, *stop;
            value = key_end(p, end, &stop, &odd, ok);
            if (!value || !*ok) return value;
            wanted = wanted_of(c, key, stop - key);
            value = blank(value, end);
        }
        int64_t ignored;
        p = usual_number(value, end, &ignored);
        if (!p) p = value_end(value, end, DEEPEST - 1, &odd, ok);
        if (!p || !*ok) return p;
        if (wanted >= 0) keep_wanted(&c->wanted[wanted], c->num_rows, value, p - value);
        p = blank(p, end);
        if (p >= end) return NULL;
        if (*p != '}' && *p != ',') return *ok = 0, p;
        p++;
    keep:
        if (fresh.count < MEMBERS)
            fresh.members[fresh.count] =
                (Member){(int32_t)(begin - from), (int32_t)(value - from), (int32_t)(p - from), wanted};
        fresh.count++;
        if (p[-1] == '}') break;
    }
    *flags |= odd;
    if (is_new && !odd && fresh.count && fresh.count <= MEMBERS && is_distinct(&fresh)) *seen = fresh;
    return p;
}

static int is(const uint8_t *key, int64_t len, const char *name) {
    return (int64_t)strlen(name) == len && !memcmp(key, name, len);
}

static int span_of(const uint8_t *key, int64_t len) {
    switch (len) {
    case 1: return *key == 's' ? SCOPE : -1;
    case 2: return is(key, len, "ts") ? TS : is(key, len, "id") ? ID : -1;
    case 3: return is(key, len, "pid") ? PID : is(key, len, "tid") ? TID : is(key, len, "dur") ? DUR
                 : is(key, len, "id2") ? ID2 : -1;
    case 4: return is(key, len, "args") ? ARGS : -1;
    case 7: return is(key, len, "bind_id") ? BIND_ID : -1;
    default: return -1;
    }
}

#define WORD(a, b, c, d, e, f, g, h) \
    ((uint64_t)(a) | (uint64_t)(b) << 8 | (uint64_t)(c) << 16 | (uint64_t)(d) << 24 | (uint64_t)(e) << 32 \
     | (uint64_t)(f) << 40 | (uint64_t)(g) << 48 | (uint64_t)(h) << 56)
#define FIRST(n) (UINT64_MAX >> (64 - 8 * (n)))

enum { PHASE = NUM_SPANS, NAME, CATEGORY, BINDING, ARROW_IN, ARROW_OUT, OTHER };

/* The key at the quote p, with the colon and the blank that most writers put behind it, told by eight bytes. Gives the
 * field and moves *at to the value; -1 where it takes a closer look. */
static int usual_key(const uint8_t *p, const uint8_t *end, const uint8_t **at) {
    if (end - p < 16) return -1;
    uint64_t word = load(p);
    switch (word & FIRST(6)) {
    case WORD('"', 'p', 'h', '"', ':', ' ', 0, 0): return *at = p + 6, PHASE;
    case WORD('"', 't', 's', '"', ':', ' ', 0, 0): return *at = p + 6, TS;
    case WORD('"', 'i', 'd', '"', ':', ' ', 0, 0): return *at = p + 6, ID;
    case WORD('"', 'p', 'i', 'd', '"', ':', 0, 0): return *at = p + 6, PID;
    case WORD('"', 't', 'i', 'd', '"', ':', 0, 0): return *at = p + 6, TID;
    case WORD('"', 'd', 'u', 'r', '"', ':', 0, 0): return *at = p + 6, DUR;
    case WORD('"', 'c', 'a', 't', '"', ':', 0, 0): return *at = p + 6, CATEGORY;
    case WORD('"', 'n', 'a', 'm', 'e', '"', 0, 0): return p[6] == ':' ? (*at = p + 7, NAME) : -1;
    case WORD('"', 'a', 'r', 'g', 's', '"', 0, 0): return p[6] == ':' ? (*at = p + 7, ARGS) : -1;
    default: return -1;
    }
}

/* The field that a key of any spelling names. */
static int field_of(const uint8_t *key, int64_t len) {
    int which = span_of(key, len);
    return which >= 0 ? which : is(key, len, "ph") ? PHASE : is(key, len, "name") ? NAME
         : is(key, len, "cat") ? CATEGORY : is(key, len, "bp") ? BINDING : is(key, len, "flow_in") ? ARROW_IN
         : is(key, len, "flow_out") ? ARROW_OUT : OTHER;
}

/* Behind an object that holds no other and whose brace is the first on its line: nothing else is looked at. NULL where it
 * is written in another way; `end` where the text ends before. */
static const uint8_t *skimmed_end(const uint8_t *p, const uint8_t *end) {
    const uint8_t *brace = memchr(p + 1, '}', end - p - 1), *line = brace;
    if (!brace) return end;
    while (line[-1] == ' ') line--;
    if (line[-1] != '\n' || memchr(p + 1, '{', brace - p - 1)) return NULL;
    p = blank(brace + 1, end);
    return p >= end ? end : *p == ',' || *p == '}' ? brace + 1 : NULL;
}

/* The pid or tid at p is that of the last event, and does not go on. */
static int is_last(const Seen *seen, int which, const uint8_t *p, const uint8_t *end) {
    const Text *last = &seen->last[which];
    return seen->is_plain[which] && end - p > last->len && same(p, last->at, last->len) && !IN_SCALAR[p[last->len]];
}

static int is_plain(Text number) {
    return number.len && number.len < 16 && *number.at != '0' && digits(number.at, number.at + number.len) == number.at + number.len;
}

static int32_t thread_of(Columns *c, Text pid, Text tid, Seen *seen) {
    Text *last = seen->last;
    if (seen->last_thread >= 0 && last[0].len == pid.len && last[1].len == tid.len && same(last[0].at, pid.at, pid.len)
        && same(last[1].at, tid.at, tid.len)) return seen->last_thread;
    uint8_t usual[256], *key = usual;
    int64_t len = pid.len + tid.len + 1;
    if (len > (int64_t)sizeof usual && !(key = malloc(len))) return c->threads->failed = 1, -1;
    memcpy(key, pid.at, pid.len);
    key[pid.len] = ' ';
    memcpy(key + pid.len + 1, tid.at, tid.len);
    last[0] = pid, last[1] = tid;
    seen->is_plain[0] = is_plain(pid), seen->is_plain[1] = is_plain(tid);
    seen->last_thread = interner_add(c->threads, key, len);
    if (key != usual) free(key);
    return seen->last_thread;
}

static int32_t category_of(Columns *c, Text category, Seen *seen) {
    Text *last = &seen->last_category;
    if (!last->at || last->len != category.len || !same(last->at, category.at, category.len)) {
        *last = category;
        seen->last_number = interner_add(c->categories, category.at, category.len);
    }
    return seen->last_number;
}

/* Where arguments of an event of this name may have been seen. */
static Args *args_of(Seen *seen, Text name) {
    uint64_t hash = name.len >= 8 ? load(name.at + name.len - 8) * UINT64_C(0x9e3779b97f4a7c15) : 0;
    return &seen->args[(hash >> 56 ^ (uint64_t)name.len) % USUAL_ARGS];
}

/* Of two equal keys the second counts: what the event said before is not so. */
static void forget_args(Columns *c, Seen *seen) {
    forget_wanted(c);
    memset(seen->args, 0, sizeof seen->args);
}

/* One event; p is at its brace. NULL where the text ends inside of it, *ok 0 where it is damaged. */
static const uint8_t *read_event(const uint8_t *buf, const uint8_t *p, const uint8_t *end, Columns *c, Seen *seen, int *ok) {
    int64_t row = c->num_rows, thousandfold;
    const uint8_t *from = p;
    int32_t *spans = c->spans + 2 * NUM_SPANS * row;
    uint8_t flags = 0;
    Text name = {from, 0}, category = {from, 0}, field[NUM_SPANS];
    int has_category = 0, shape = 0, is_read[2] = {0};
    memset(spans, 0, 2 * NUM_SPANS * sizeof *spans);
    for (int which = 0; which < NUM_SPANS; which++) field[which] = (Text){from, 0};
    c->phase[row] = 0;
    forget_wanted(c);
    for (int slot = 0;; slot++) {
        Gap *gap = slot < SLOTS ? &seen->gaps[shape][slot] : NULL;
        const uint8_t *value, *before = p;
        int which;
        if (gap && gap->len && end - p > gap->len && same(p, gap->at, gap->len)) {
            value = blank(p + gap->len, end), which = gap->which;
            if (value >= end) return NULL;
        } else {
            if (slot) {
                p = blank(p, end);
                if (p >= end) return NULL;
                if (*p == '}') break;
                if (*p != ',') return *ok = 0, p;
            }
            p = blank(p + 1, end);
            if (p >= end) return NULL;
            if (*p == '}') {
                if (slot) flags |= REPAIR;
                break;
            }
            which = usual_key(p, end, &value);
            if (which < 0) {
                const uint8_t *key = p + 1, *stop;
                value = key_end(p, end, &stop, &flags, ok);
                if (!value || !*ok) return value;
                which = field_of(key, stop - key);
            }
            value = blank(value, end);
            if (value >= end) return NULL;
            if (gap && !flags && value - before < INT32_MAX) *gap = (Gap){before, (int32_t)(value - before), which};
        }
        p = value;
        int quoted = *p == '"';
        const uint8_t *behind = NULL;
        if (quoted) {
            if (which == PHASE && end - p > 2 && p[2] == '"' && !IN_STRING[p[1]] && p[1] < 128) {
                p += 3;
            } else {
                p = string_end(p + 1, end, &flags);
                if (!p) return NULL;
                p++;
            }
        } else if ((which == PID || which == TID) && is_last(seen, which == TID, p, end)) {
            p += seen->last[which == TID].len;
        } else if (*p == '{' && which == ARGS) {
            if (field[ARGS].len) forget_args(c, seen);
            if (c->skims && !c->num_wanted) behind = skimmed_end(p, end);
            if (behind == end) return NULL;
            p = behind ? behind : read_args(p, end, c, args_of(seen, name), &flags, ok);
        } else if ((behind = usual_number(p, end, &thousandfold))) {
            p = behind;
        } else if (*p <= '9') {
            p = scalar_end(p, end, &flags, ok);
        } else {
            p = value_end(p, end, DEEPEST, &flags, ok);
        }
        if (!p || !*ok) return p;
        if (which < NUM_SPANS) {
            spans[2 * which] = (int32_t)(value - buf), spans[2 * which + 1] = (int32_t)(p - value);
            field[which].at = value, field[which].len = p - value;
            if (which == TS || which == DUR) {
                is_read[which == DUR] = behind != NULL;
                if (behind) *(which == TS ? &c->ts_ns[row] : &c->dur_ns[row]) = thousandfold;
            }
            if (which == ARGS && *value != '{') forget_args(c, seen);
        } else if (which == PHASE) {
            c->phase[row] = quoted && p - value > 2 ? value[1] : 0;
            shape = 1 + (c->phase[row] & 7);
        } else if (which == NAME) {
            name.at = value + quoted, name.len = p - value - 2 * quoted;
        } else if (which == CATEGORY) {
            category.at = value + quoted, category.len = p - value - 2 * quoted, has_category = 1;
        } else if (which != OTHER) {
            uint8_t bit = which == BINDING ? ENCLOSING : which == ARROW_IN ? FLOW_IN : FLOW_OUT;
            flags = is(value, p - value, which == BINDING ? "\"e\"" : "true") ? flags | bit : flags & ~bit;
        }
    }
    p++;
    int64_t *times[2] = {&c->ts_ns[row], &c->dur_ns[row]};
    for (int i = 0; i < 2; i++) {
        Text time = field[i ? DUR : TS];
        if (is_read[i]) continue;
        *times[i] = NONE;
        if (time.len && !nanoseconds(time.at, time.len, times[i])) flags |= BAD_TIME;
    }
    if (field[SCOPE].len == 3 && !memcmp(field[SCOPE].at, "\"g\"", 3) && (c->phase[row] | 32) == 'i') flags |= GLOBAL;
    for (int32_t i = 0; i < c->num_wanted; i++) {
        Wanted *w = &c->wanted[i];
        if (w->is_text && w->found_at) w->texts[row] = interner_add(c->texts, w->found_at, w->found_len);
    }
    c->start[row] = (int32_t)(from - buf), c->end[row] = (int32_t)(p - buf);
    c->name[row] = interner_add(c->names, name.at, name.len);
    c->category[row] = has_category ? category_of(c, category, seen) : -1;
    c->thread[row] = thread_of(c, field[PID], field[TID], seen);
    c->flags[row] = flags;
    c->num_rows++;
    return p;
}

/* Reads events until the text, the room for rows or the array ends. Returns how it ended; *at is where to go on: behind
 * the array, at the damage, or at the first event that is not whole. */
int32_t scan_events(const uint8_t *buf, int64_t len, int64_t *at, Columns *c) {
    const uint8_t *p = buf + *at, *end = buf + len;
    Seen seen;
    memset(&seen, 0, sizeof seen);
    seen.last_thread = -1;
    c->num_rows = 0;
    for (;;) {
        while (p < end && (*p == ',' || *p == ' ' || *p == '\n' || *p == '\t' || *p == '\r')) p++;
        *at = p - buf;
        if (p >= end) return MORE;
        if (*p == ']') return *at += 1, ENDED;
        if (c->num_rows == c->max_rows) return FULL;
        if (*p != '{') return MALFORMED;
        int ok = 1;
        p = read_event(buf, p, end, c, &seen, &ok);
        if (!ok) return MALFORMED;
        if (!p) return MORE;
        if (c->names->failed | c->categories->failed | c->threads->failed | c->texts->failed) return NO_MEMORY;
    }
}

/* ---- rewriting ------------------------------------------------------------------------------------------------------ */

static uint8_t *put_integer(uint8_t *out, int64_t value) {
    uint8_t digits[20];
    int n = 0;
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    do digits[n++] = '0' + rest % 10; while (rest /= 10);
    if (value < 0) *out++ = '-';
    while (n) *out++ = digits[--n];
    return out;
}

static uint8_t *put_microseconds(uint8_t *out, int64_t ns) {
    if (ns < 0) *out++ = '-', ns = -ns;
    out = put_integer(out, ns / 1000);
    int rest = (int)(ns % 1000);
    *out++ = '.', *out++ = '0' + rest / 100, *out++ = '0' + rest / 10 % 10, *out++ = '0' + rest % 10;
    return out;
}

static uint8_t *put_key(uint8_t *out, int *comma, const char *key) {
    if (*comma) *out++ = ',';
    *comma = 1, *out++ = '"';
    memcpy(out, key, 3);
    memcpy(out + 3, "\":", 2);
    return out + 5;
}

/* The number for an id: its own value beside the rank's where it is a small one, else one that is given out in order. */
int64_t link_of(Interner *ids, const uint8_t *p, int64_t n, int64_t first) {
    if (n >= 2 && *p == '"' && p[n - 1] == '"') p++, n -= 2;
    int64_t value = n && *p != '-' ? integer(p, n) : NONE;
    if (value != NONE && value < INT64_C(1) << 31) return first + value;
    return first + (INT64_C(1) << 31) + interner_add(ids, p, n);
}

/* Phases whose id links events: arrows, asynchronous events, objects, samples, memory dumps, contexts. */
static int is_linked(uint8_t phase) { return phase && strchr("stfbenSTpFNODPvV()", phase) != NULL; }

/* The number for what links each event with others: its id, or the bind_id of a slice; NONE for the rest. 0 without
 * memory. */
int32_t link_rows(const uint8_t *buf, const Columns *c, Interner *ids, int64_t *links) {
    for (int64_t row = 0; row < c->num_rows; row++) {
        const int32_t *spans = c->spans + 2 * NUM_SPANS * row, *id = spans + 2 * BIND_ID;
        if (is_linked(c->phase[row])) id = spans + 2 * (spans[2 * ID + 1] ? ID : ID2);
        links[row] = id[1] ? link_of(ids, buf + id[0], id[1], 0) : NONE;
    }
    return !ids->failed;
}

/* Where the id stands that an id2 shares with all processes; 0 where it is of one process alone. */
static int global_id(const uint8_t *from, const uint8_t *end, int32_t *offset, int32_t *len) {
    const uint8_t *p = from, *stop;
    uint8_t flags;
    int ok = *p == '{';
    while (ok && p < end && *p != '}') {
        const uint8_t *key = blank(p + 1, end), *value = key < end ? key_end(key, end, &stop, &flags, &ok) : NULL;
        if (!value || !ok) return 0;
        value = blank(value, end);
        p = value_end(value, end, DEEPEST, &flags, &ok);
        if (!p || !ok) return 0;
        if (is(key + 1, stop - key - 1, "global")) {
            *offset = (int32_t)(value - from), *len = (int32_t)(p - value);
            return 1;
        }
        p = blank(p, end);
    }
    return 0;
}

/* Events with keep[row], joined by ",\n", with the numbers given. New times are in ns; NONE leaves the text alone, and
 * in links[row] gives the id a number. keep[row] NO_ARROW takes the arrow of a slice away.
 * Returns the bytes written, -1 without memory; out has room for the text and 192 bytes a row. */
int64_t rewrite_events(const uint8_t *buf, const Columns *c, const uint8_t *keep, const int64_t *pid, const int64_t *tid,
                       const int64_t *ts_ns, const int64_t *dur_ns, const int64_t *links, Interner *ids,
                       int64_t first_id, uint8_t *out) {
    uint8_t *start = out;
    for (int64_t row = 0; row < c->num_rows; row++) {
        if (!keep[row]) continue;
        if (out != start) *out++ = ',', *out++ = '\n';
        const int32_t *spans = c->spans + 2 * NUM_SPANS * row;
        int32_t places[NUM_SPANS][3];
        int n = 0;
        int linked = is_linked(c->phase[row]);
        for (int which = 0; which < ARGS; which++) {
            int32_t offset = spans[2 * which], len = spans[2 * which + 1], inner;
            if (!len) continue;
            if ((which == TS && ts_ns[row] == NONE) || (which == DUR && dur_ns[row] == NONE)) continue;
            if ((which == ID && !linked) || (which == SCOPE && !(c->flags[row] & GLOBAL))) continue;
            if (which == ID2) {
                if (!global_id(buf + offset, buf + offset + len, &inner, &len)) continue;
                offset += inner;
            }
            int at = n++;
            for (; at && places[at - 1][0] > offset; at--) memcpy(places[at], places[at - 1], sizeof *places);
            places[at][0] = offset, places[at][1] = len, places[at][2] = which;
        }
        int32_t from = c->start[row];
        for (int i = 0; i < n; i++) {
            memcpy(out, buf + from, places[i][0] - from), out += places[i][0] - from;
            const uint8_t *old = buf + places[i][0];
            int32_t len = places[i][1];
            switch (places[i][2]) {
            case PID: out = put_integer(out, pid[row]); break;
            case TID: out = put_integer(out, tid[row]); break;
            case TS: out = put_microseconds(out, ts_ns[row]); break;
            case DUR: out = put_microseconds(out, dur_ns[row]); break;
            case SCOPE: memcpy(out, "\"p\"", 3), out += 3; break;
            case ID2: *out++ = '"', out = put_integer(out, link_of(ids, old, len, first_id)), *out++ = '"'; break;
            default:
                if (places[i][2] == BIND_ID && keep[row] == NO_ARROW) memcpy(out, "null", 4), out += 4;
                else out = put_integer(out, links[row] != NONE ? links[row] : link_of(ids, old, len, first_id));
            }
            from = places[i][0] + len;
        }
        memcpy(out, buf + from, c->end[row] - from), out += c->end[row] - from;
        /* what is not there and has to be: a process, a thread, the duration of a slice */
        int no_pid = !spans[2 * PID + 1], no_tid = !spans[2 * TID + 1];
        int no_dur = !spans[2 * DUR + 1] && dur_ns[row] != NONE;
        if (no_pid || no_tid || no_dur) {
            out--;
            const uint8_t *before = out - 1;
            while (*before == ' ' || *before == '\n' || *before == '\t' || *before == '\r') before--;
            int comma = *before != '{';
            if (no_pid) out = put_integer(put_key(out, &comma, "pid"), pid[row]);
            if (no_tid) out = put_integer(put_key(out, &comma, "tid"), tid[row]);
            if (no_dur) out = put_microseconds(put_key(out, &comma, "dur"), dur_ns[row]);
            *out++ = '}';
        }
    }
    return ids->failed ? -1 : out - start;
}

/* ---- overlaps ------------------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t end, row;
} Open;

/* Slices in `order` (by thread, start, longest first) that stick out of the one they begin in. Where it is no more than
 * `tolerance`, the less of two parts that are in each other's way goes: the end of the slice, or the ends of those that it
 * sticks out of; cut_dur[row] is what is left. Else lane[row] > 0 is the side lane that it fits into. Returns how many
 * stick out, or -1 without memory. */
int64_t find_overlaps(int64_t n, const int64_t *order, const int64_t *start, const int64_t *dur, const int32_t *thread,
                      int64_t tolerance, int32_t max_lanes, int32_t *lane, int64_t *cut_dur) {
    int64_t found = 0, room = 64;
    int64_t *depth = calloc(max_lanes, sizeof *depth);
    int64_t *sizes = malloc(max_lanes * sizeof *sizes);
    Open **stack = calloc(max_lanes, sizeof *stack);
    int failed = !depth || !sizes || !stack;
    for (int32_t l = 0; !failed && l < max_lanes; l++) {
        sizes[l] = room, stack[l] = malloc(room * sizeof **stack);
        failed |= !stack[l];
    }
    for (int64_t i = 0; !failed && i < n; i++) {
        int64_t row = order[i], from = start[row], to = from + dur[row];
        if (i && thread[order[i - 1]] != thread[row]) memset(depth, 0, max_lanes * sizeof *depth);
        int32_t l = 0;
        for (;; l++) {
            Open *open = stack[l];
            while (depth[l] && open[depth[l] - 1].end <= from) depth[l]--;
            int64_t end = depth[l] ? open[depth[l] - 1].end : INT64_MAX;
            if (to <= end) break;
            int64_t outer = depth[l], theirs = 0; /* those it sticks out of are from `outer` on */
            for (; outer && open[outer - 1].end < to; outer--) {
                int64_t other = open[outer - 1].row, loss = start[other] + dur[other] - from;
                if (start[other] == from) loss = INT64_MAX; /* nothing would be left */
                if (loss > theirs) theirs = loss;
            }
            if (l == 0 && theirs <= tolerance && theirs < to - end) {
                while (depth[l] > outer) {
                    int64_t other = open[--depth[l]].row;
                    cut_dur[other] = from - start[other];
                }
                found++;
                break;
            }
            if ((l == 0 && to - end <= tolerance) || l + 1 == max_lanes) { /* without a free lane what is seen is cut */
                cut_dur[row] = end - from, to = end, found += !l;
                break;
            }
        }
        if (l) lane[row] = l, found++;
        if (depth[l] == sizes[l]) {
            Open *more = realloc(stack[l], 2 * sizes[l] * sizeof *more);
            if (!more) {
                failed = 1;
                break;
            }
            stack[l] = more, sizes[l] *= 2;
        }
        stack[l][depth[l]++] = (Open){to, row};
    }
    for (int32_t l = 0; stack && l < max_lanes; l++) free(stack[l]);
    free(stack), free(sizes), free(depth);
    return failed ? -1 : found;
}

/* Of each time, which ascend: the number of the last slice that has begun by then and not ended before, -1 without one.
 * Slices by start. Returns 0 without memory. */
int32_t find_innermost(int64_t n, const int64_t *start, const int64_t *end, int64_t m, const int64_t *at, int64_t *found) {
    int64_t depth = 0, room = 64, next = 0, *open = malloc(room * sizeof *open);
    for (int64_t i = 0; open && i < m; i++) {
        for (; next < n && start[next] <= at[i]; next++) {
            while (depth && end[open[depth - 1]] < start[next]) depth--;
            if (depth == room) {
                int64_t *more = realloc(open, 2 * room * sizeof *more);
                if (!more) return free(open), 0;
                open = more, room *= 2;
            }
            open[depth++] = next;
        }
        while (depth && end[open[depth - 1]] < at[i]) depth--;
        found[i] = depth ? open[depth - 1] : -1;
    }
    if (!open) return 0;
    return free(open), 1;
}
