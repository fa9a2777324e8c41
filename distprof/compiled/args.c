/* The object `args` of an event: the values of some keys become columns. */

/* The row has none of the wanted keys so far. */
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
    if (!memchr(key, '\\', len)) return -1;
    for (int32_t i = 0; i < c->num_wanted; i++)
        if (is_spelled(key, len, c->wanted[i].key)) return i;
    return -1;
}

/* The value of a wanted key. Texts are interned when the event turns out to be whole. */
static void keep_wanted(Wanted *w, int64_t row, const uint8_t *value, int64_t len) {
    if (w->is_text) {
        int quoted = *value == '"';
        w->found_at = value + quoted, w->found_len = len - 2 * quoted;
    } else {
        w->integers[row] = integer(value, len);
    }
}

/* The value is that of an earlier row. */
static void keep_known(Wanted *w, int64_t row, int64_t earlier) {
    if (w->is_text) w->texts[row] = w->texts[earlier], w->found_at = NULL;
    else w->integers[row] = w->integers[earlier];
}

/* No wanted key is there twice. If one were, the column would hold the second value, not the one seen first. */
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
