/* JSON: where strings, numbers and values end, and whether they are written as every viewer reads them.
 *
 * An event is an object as RFC 8259 has it. What programs write beside the letter of it is read too, and flagged REPAIR:
 * NaN and infinities, integers above 64 bits, numbers like 01 +1 .5 5., a comma too many before } or ], control characters
 * and unknown escapes in strings. All else is damage, as are values nested deeper than DEEPEST.
 */

#define DEEPEST 256 /* no event nests so deep, and no viewer would follow */

/* What a byte is inside a string: 0 goes on, 1 ends it, 2 escapes, 3 must not stand there. */
static const uint8_t IN_STRING[256] = {
    3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3,
    ['"'] = 1, ['\\'] = 2,
};

/* Bytes that numbers and the words true, false, null, NaN and Infinity are made of. */
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

/* The next byte that is not blank, or `end`. Eight blanks at a time: indented traces are full of them. */
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
            if (p < end && *p == '"' && p[-1] == '\\') *flags |= REPAIR; /* Perfetto reads \\" as an escaped quote */
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

/* Whether a key is a name, of which characters may be escaped, as in "p\u0068". */
static int is_spelled(const uint8_t *key, int64_t len, const char *name) {
    const uint8_t *end = key + len;
    for (; *name && key < end; name++) {
        int code = *key++;
        if (code == '\\') {
            if (key == end) return 0;
            code = *key++;
            if (code == 'u') {
                if (end - key < 4) return 0;
                code = 0;
                for (int i = 0; i < 4; i++, key++) code = code * 16 + (*key <= '9' ? *key - '0' : (*key | 32) - 'a' + 10);
            } else if (code != '"' && code != '\\' && code != '/') {
                return 0; /* control characters, which no name has */
            }
        }
        if (code != (uint8_t)*name) return 0;
    }
    return !*name && key == end;
}

/* A short integer, as most numbers are; NULL where it takes a closer look. */
static const uint8_t *short_integer_end(const uint8_t *p, const uint8_t *end) {
    const uint8_t *behind = digits(p, end);
    if (behind == p || behind - p > 15 || behind == end || IN_SCALAR[*behind] || (*p == '0' && behind - p > 1)) return NULL;
    return behind;
}

/* An array of strings, short integers, and arrays like it, as programs write them; NULL where it takes a closer look. */
static const uint8_t *usual_array_end(const uint8_t *p, const uint8_t *end) {
    uint8_t flags = 0;
    int depth = 0;
    while (p < end) { /* before a value */
        if (*p == '[' && depth < 8) {
            depth++, p++;
            if (p == end || *p != ']') continue;
        } else if (*p == '"') {
            p = string_end(p + 1, end, &flags);
            if (!p++ || flags) return NULL;
        } else if (!(p = short_integer_end(p, end))) {
            return NULL;
        }
        for (; p < end && *p == ']'; p++) /* behind one */
            if (!--depth) return p + 1;
        if (end - p < 2 || *p != ',') return NULL;
        p += 1 + (p[1] == ' ');
    }
    return NULL;
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
            const uint8_t *behind = short_integer_end(p, end);
            p = behind ? behind : scalar_end(p, end, flags, ok);
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
