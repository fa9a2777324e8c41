/* The object `args` of an event: the values of some keys become columns. */

/* Rows have none of the wanted keys so far. */
static void forget_wanted(Columns *c, int64_t row, int64_t count) {
    for (int32_t i = 0; i < c->num_wanted; i++) {
        Wanted *w = &c->wanted[i];
        w->found_at = NULL;
        for (int64_t at = row; at < row + count; at++)
            if (w->is_text) w->texts[at] = -1;
            else w->integers[at] = NONE;
    }
    c->has_found = 0;
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
static void keep_wanted(Columns *c, Wanted *w, const uint8_t *value, int64_t len) {
    if (w->is_text) {
        int quoted = *value == '"';
        w->found_at = value + quoted, w->found_len = len - 2 * quoted;
        c->has_found = 1;
    } else {
        w->integers[c->num_rows] = integer(value, len);
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

/* An object that differs from `seen` in values alone; NULL where it does in more, or the text ends. */
static const uint8_t *read_like(const uint8_t *from, const uint8_t *end, Columns *c, const Args *seen, uint8_t *flags) {
    const uint8_t *p = from + 1, *like = seen->at + 1, *last = seen->at + seen->members[seen->count - 1].end;
    for (int32_t i = 0;;) {
        int64_t begin = like - seen->at;
        int64_t equal = begin + num_same(p, like, end - p < last - like ? end - p : last - like);
        for (; i < seen->count && seen->members[i].end <= equal; i++)
            if (seen->members[i].wanted >= 0) keep_known(&c->wanted[seen->members[i].wanted], c->num_rows, seen->row);
        if (i == seen->count) return p + (last - like);
        const Member *member = &seen->members[i++];
        if (member->value > equal) return NULL;
        p += member->value - begin;
        int64_t thousandfold;
        int ok = 1;
        const uint8_t *value = p = blank(p, end);
        if (p >= end) return NULL;
        p = *p == '[' ? usual_array_end(p, end) : usual_number(p, end, &thousandfold);
        if (!p) p = value_end(value, end, DEEPEST - 1, flags, &ok);
        if (!p || !ok) return NULL;
        if (member->wanted >= 0) keep_wanted(c, &c->wanted[member->wanted], value, p - value);
        p = blank(p, end);
        if (p >= end) return NULL;
        like = seen->at + member->end;
        if (*p++ != like[-1]) return NULL;
        if (i == seen->count) return p;
    }
}

/* Like value_end for an object of which some values become columns; `seen` is one that may be like it. */
static const uint8_t *read_args(const uint8_t *from, const uint8_t *end, Columns *c, Args *seen, uint8_t *flags, int *ok) {
    uint8_t odd = 0;
    const uint8_t *p = seen->at ? read_like(from, end, c, seen, &odd) : NULL;
    if (p) return *flags |= odd, p;
    Args fresh; /* most of it is never looked at */
    fresh.at = from, fresh.row = (int32_t)c->num_rows, fresh.count = 0;
    for (odd = 0, p = from + 1;;) {
        const uint8_t *begin = p, *stop;
        p = blank(p, end);
        if (p >= end) return NULL;
        if (*p == '}') {
            if (fresh.count) odd |= REPAIR;
            p++;
            break;
        }
        const uint8_t *key = p + 1, *value = key_end(p, end, &stop, &odd, ok);
        if (!value || !*ok) return value;
        int32_t wanted = wanted_of(c, key, stop - key);
        value = blank(value, end);
        int64_t thousandfold;
        p = usual_number(value, end, &thousandfold);
        if (!p) p = value_end(value, end, DEEPEST - 1, &odd, ok);
        if (!p || !*ok) return p;
        if (wanted >= 0) keep_wanted(c, &c->wanted[wanted], value, p - value);
        p = blank(p, end);
        if (p >= end) return NULL;
        if (*p != '}' && *p != ',') return *ok = 0, p;
        p++;
        if (fresh.count < MEMBERS)
            fresh.members[fresh.count] =
                (Member){(int32_t)(begin - from), (int32_t)(value - from), (int32_t)(p - from), wanted};
        fresh.count++;
        if (p[-1] == '}') break;
    }
    *flags |= odd;
    if (!odd && fresh.count && fresh.count <= MEMBERS && is_distinct(&fresh)) *seen = fresh;
    return p;
}
