/* Events: each object of the array becomes a row of the columns. */

/* Skims `args`: returns the place behind an object that holds no other and whose closing brace is the first on its line,
 * without a look at what it holds. NULL where it is written in another way; `end` where the text ends before. */
static const uint8_t *skimmed_end(const uint8_t *p, const uint8_t *end) {
    const uint8_t *brace = memchr(p + 1, '}', end - p - 1), *line = brace;
    if (!brace) return end;
    while (line[-1] == ' ') line--;
    if (line[-1] != '\n' || memchr(p + 1, '{', brace - p - 1)) return NULL;
    p = blank(brace + 1, end);
    return p >= end ? end : *p == ',' || *p == '}' ? brace + 1 : NULL;
}

/* Whether the pid or tid at p is that of the event before, and does not go on behind it. */
static int is_last(const Seen *seen, int which, const uint8_t *p, const uint8_t *end) {
    const Text *last = &seen->last[which];
    return seen->is_plain[which] && end - p > last->len && same(p, last->at, last->len) && !IN_SCALAR[p[last->len]];
}

/* Digits only, so that equal bytes are the same number and others are not. */
static int is_plain(Text number) {
    return number.len && number.len < 16 && *number.at != '0' && digits(number.at, number.at + number.len) == number.at + number.len;
}

/* Number of the thread: pid and tid with a blank between them are interned. */
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

/* Where the arguments of the last event of this name are, or of another name with the same hash. */
static Args *args_of(Seen *seen, Text name) {
    uint64_t hash = name.len >= 8 ? load(name.at + name.len - 8) * UINT64_C(0x9e3779b97f4a7c15) : 0;
    return &seen->args[(hash >> 56 ^ (uint64_t)name.len) % USUAL_ARGS];
}

/* `args` is there twice. The second one counts: what was kept of the first, and what was remembered, goes. */
static void forget_args(Columns *c, Seen *seen) {
    forget_wanted(c);
    memset(seen->args, 0, sizeof seen->args);
}

/* The event that is being read. */
typedef struct {
    const uint8_t *from; /* its brace */
    int64_t row;
    uint8_t flags;
    int shape, has_category, is_read[2]; /* is_read: ts and dur are in their columns already */
    Text name, category, field[NUM_SPANS];
} Event;

/* The key behind p is read: returns the place behind its colon. NULL where the text ends; sets *ok to 0 where it is
 * damaged. */
static const uint8_t *read_key(const uint8_t *p, const uint8_t *end, int *which, uint8_t *flags, int *ok) {
    const uint8_t *value, *stop;
    *which = usual_key(p, end, &value);
    if (*which >= 0) return value;
    value = key_end(p, end, &stop, flags, ok);
    if (value && *ok) *which = field_of(p + 1, stop - (p + 1));
    return value;
}

/* Returns the next value of the event, and the field that it is of; or its closing brace, and NO_FIELD. NULL where the
 * text ends; sets *ok to 0 where it is damaged.
 *
 * The gap before the value (comma, key, colon, blanks) is compared with the one that stood there in the last event of
 * this kind, and only read where it differs. */
static const uint8_t *next_value(const uint8_t *p, const uint8_t *end, int is_first, Gap *gap, int *which, uint8_t *flags,
                                 int *ok) {
    const uint8_t *before = p;
    if (gap && gap->len && end - p > gap->len && same(p, gap->at, gap->len)) {
        *which = gap->which;
        p = blank(p + gap->len, end);
        return p < end ? p : NULL;
    }
    *which = NO_FIELD;
    if (!is_first) {
        p = blank(p, end);
        if (p >= end) return NULL;
        if (*p == '}') return p;
        if (*p != ',') return *ok = 0, p;
    }
    p = blank(p + 1, end);
    if (p >= end) return NULL;
    if (*p == '}') {
        if (!is_first) *flags |= REPAIR; /* a comma in front of it */
        return p;
    }
    p = read_key(p, end, which, flags, ok);
    if (!p || !*ok) return p;
    p = blank(p, end);
    if (p >= end) return NULL;
    if (gap && !*flags && p - before < INT32_MAX) *gap = (Gap){before, (int32_t)(p - before), *which};
    return p;
}

static const uint8_t *read_string(const uint8_t *p, const uint8_t *end, int which, uint8_t *flags) {
    if (which == PHASE && end - p > 2 && p[2] == '"' && !IN_STRING[p[1]] && p[1] < 128) return p + 3;
    p = string_end(p + 1, end, flags);
    return p ? p + 1 : NULL;
}

static const uint8_t *read_event_args(const uint8_t *p, const uint8_t *end, Columns *c, Seen *seen, Event *e, int *ok) {
    if (e->field[ARGS].len) forget_args(c, seen);
    const uint8_t *behind = c->skims && !c->num_wanted ? skimmed_end(p, end) : NULL;
    if (behind == end) return NULL;
    return behind ? behind : read_args(p, end, c, args_of(seen, e->name), &e->flags, ok);
}

/* Returns the place behind the value at p, and writes times to their columns. NULL where the text ends inside of it; sets
 * *ok to 0 where it is damaged. */
static const uint8_t *read_value(const uint8_t *p, const uint8_t *end, int which, Columns *c, Seen *seen, Event *e, int *ok) {
    int is_time = which == TS || which == DUR;
    if (is_time) e->is_read[which == DUR] = 0;
    if (*p == '"') return read_string(p, end, which, &e->flags);
    if ((which == PID || which == TID) && is_last(seen, which == TID, p, end)) return p + seen->last[which == TID].len;
    if (*p == '{' && which == ARGS) return read_event_args(p, end, c, seen, e, ok);
    int64_t thousandfold;
    const uint8_t *behind = usual_number(p, end, &thousandfold);
    if (!behind) return *p <= '9' ? scalar_end(p, end, &e->flags, ok) : value_end(p, end, DEEPEST, &e->flags, ok);
    if (is_time) {
        e->is_read[which == DUR] = 1;
        *(which == TS ? &c->ts_ns[e->row] : &c->dur_ns[e->row]) = thousandfold;
    }
    return behind;
}

/* Keeps what the event needs of a value. */
static void keep_value(const uint8_t *buf, Text value, int which, Columns *c, Seen *seen, Event *e) {
    int quoted = *value.at == '"';
    if (which < NUM_SPANS) {
        int32_t *span = c->spans + 2 * (NUM_SPANS * e->row + which);
        span[0] = (int32_t)(value.at - buf), span[1] = (int32_t)value.len;
        e->field[which] = value;
        if (which == ARGS && *value.at != '{') forget_args(c, seen);
    } else if (which == PHASE) {
        c->phase[e->row] = quoted && value.len > 2 ? value.at[1] : 0;
        e->shape = 1 + (c->phase[e->row] & 7);
    } else if (which == NAME) {
        e->name = (Text){value.at + quoted, value.len - 2 * quoted};
    } else if (which == CATEGORY) {
        e->category = (Text){value.at + quoted, value.len - 2 * quoted}, e->has_category = 1;
    } else if (which != OTHER) {
        uint8_t bit = which == BINDING ? ENCLOSING : which == ARROW_IN ? FLOW_IN : FLOW_OUT;
        e->flags = is(value.at, value.len, which == BINDING ? "\"e\"" : "true") ? e->flags | bit : e->flags & ~bit;
    }
}

/* Times that are written in an unusual way; none where they are not there. */
static void read_times(Columns *c, Event *e) {
    int64_t *times[2] = {&c->ts_ns[e->row], &c->dur_ns[e->row]};
    for (int i = 0; i < 2; i++) {
        Text time = e->field[i ? DUR : TS];
        if (e->is_read[i]) continue;
        *times[i] = NONE;
        if (time.len && !nanoseconds(time.at, time.len, times[i])) e->flags |= BAD_TIME;
    }
}

/* Writes the columns of an event that was read up to p. */
static void write_row(const uint8_t *buf, const uint8_t *p, Columns *c, Seen *seen, Event *e) {
    int64_t row = e->row;
    Text scope = e->field[SCOPE];
    read_times(c, e);
    if (scope.len == 3 && !memcmp(scope.at, "\"g\"", 3) && (c->phase[row] | 32) == 'i') e->flags |= GLOBAL;
    if (!e->field[BIND_ID].len) e->flags &= ~(FLOW_IN | FLOW_OUT);
    for (int32_t i = 0; i < c->num_wanted; i++) {
        Wanted *w = &c->wanted[i];
        if (w->is_text && w->found_at) w->texts[row] = interner_add(c->texts, w->found_at, w->found_len);
    }
    c->start[row] = (int32_t)(e->from - buf), c->end[row] = (int32_t)(p - buf);
    c->name[row] = interner_add(c->names, e->name.at, e->name.len);
    c->category[row] = e->has_category ? category_of(c, e->category, seen) : -1;
    c->thread[row] = thread_of(c, e->field[PID], e->field[TID], seen);
    c->flags[row] = e->flags;
    c->num_rows++;
}

/* Reads the event whose brace is at p into the next row, and returns the place behind it. NULL where the text ends inside
 * of it; sets *ok to 0 where it is damaged. */
static const uint8_t *read_event(const uint8_t *buf, const uint8_t *p, const uint8_t *end, Columns *c, Seen *seen, int *ok) {
    Event e = {.from = p, .row = c->num_rows, .name = {p, 0}, .category = {p, 0}};
    for (int which = 0; which < NUM_SPANS; which++) e.field[which] = (Text){p, 0};
    memset(c->spans + 2 * NUM_SPANS * e.row, 0, 2 * NUM_SPANS * sizeof *c->spans);
    c->phase[e.row] = 0;
    forget_wanted(c);
    for (int slot = 0;; slot++) {
        int which;
        Gap *gap = slot < SLOTS ? &seen->gaps[e.shape][slot] : NULL;
        const uint8_t *value = next_value(p, end, slot == 0, gap, &which, &e.flags, ok);
        if (!value || !*ok) return value;
        p = value;
        if (which == NO_FIELD) break;
        p = read_value(value, end, which, c, seen, &e, ok);
        if (!p || !*ok) return p;
        keep_value(buf, (Text){value, p - value}, which, c, seen, &e);
    }
    p++;
    write_row(buf, p, c, seen, &e);
    return p;
}

/* Reads events until the text, the room for rows or the array ends. Returns how it ended; *at is where to go on: behind
 * the array, at the damage, or at the first event that is not whole. */
int32_t scan_events(const uint8_t *buf, int64_t len, int64_t *at, Columns *c) {
    const uint8_t *p = buf + *at, *end = buf + len;
    Seen seen;
    memset(&seen, 0, sizeof seen);
    seen.last_thread = -1;
    c->num_rows = c->num_damaged = c->lost_bytes = 0;
    for (;;) {
        while (p < end && (*p == ',' || *p == ' ' || *p == '\n' || *p == '\t' || *p == '\r')) p++;
        *at = p - buf;
        if (p >= end) return MORE;
        if (*p == ']') return *at += 1, ENDED;
        if (c->num_rows == c->max_rows) return FULL;
        int ok = *p == '{';
        if (ok) p = read_event(buf, p, end, c, &seen, &ok);
        if (!ok) {
            p = c->recovers ? behind_damage(buf + *at, end) : NULL;
            if (!p) return MALFORMED;
            c->num_damaged++, c->lost_bytes += p - buf - *at;
            continue;
        }
        if (!p) return MORE;
        if (c->names->failed | c->categories->failed | c->threads->failed | c->texts->failed) return NO_MEMORY;
    }
}
