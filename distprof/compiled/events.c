/* Events: each object of the array becomes a row of the columns. */

#define ROWS_AT_ONCE 64

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

static uint64_t hash_of_name(Text name) {
    return (name.len >= 8 ? load(name.at + name.len - 8) * UINT64_C(0x9e3779b97f4a7c15) >> 52 : 0) ^ (uint64_t)name.len;
}

/* Where the arguments of the last event of this name are, or of another name with the same hash. */
static Args *args_of(Seen *seen, Text name) { return &seen->args[hash_of_name(name) % USUAL_ARGS]; }

static int32_t name_of(Columns *c, Text name, Seen *seen) {
    Name *usual = &seen->names[hash_of_name(name) % USUAL_NAMES];
    if (!usual->at || usual->len != name.len || !same(usual->at, name.at, name.len))
        *usual = (Name){name.at, (int32_t)name.len, interner_add(c->names, name.at, name.len)};
    return usual->number;
}

/* `args` is there twice. The second one counts: what was kept of the first, and what was remembered, goes. */
static void forget_args(Columns *c, Seen *seen) {
    forget_wanted(c, c->num_rows, 1);
    memset(seen->args, 0, sizeof seen->args);
}

/* The event that is being read. */
typedef struct {
    const uint8_t *from; /* its brace */
    int64_t row;
    int32_t *spans;      /* in the columns */
    uint8_t flags;       /* of what is odd */
    uint8_t set;         /* flags of what it says about arrows */
    int has_category, is_read[2]; /* is_read: ts and dur are in their columns already */
    Text name, category;
    Gap *thread, *category_from; /* where pid and tid, and the category, come from; NULL where from no gap alone */
} Event;

static Text text_of(const uint8_t *buf, const Event *e, int which) {
    return (Text){buf + e->spans[2 * which], e->spans[2 * which + 1]};
}

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
 * text ends; sets *ok to 0 where it is damaged. */
static const uint8_t *next_value(const uint8_t *p, const uint8_t *end, int is_first, int *which, uint8_t *flags, int *ok) {
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
    return p < end ? p : NULL;
}

static const uint8_t *read_string(const uint8_t *p, const uint8_t *end, int which, uint8_t *flags) {
    if (which == PHASE && end - p > 2 && p[2] == '"' && !IN_STRING[p[1]] && p[1] < 128) return p + 3;
    p = string_end(p + 1, end, flags);
    return p ? p + 1 : NULL;
}

static const uint8_t *read_event_args(const uint8_t *p, const uint8_t *end, Columns *c, Seen *seen, Event *e, int *ok) {
    if (e->spans[2 * ARGS + 1]) forget_args(c, seen);
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

static uint8_t flag_of(int which) { return which == BINDING ? ENCLOSING : which == ARROW_IN ? FLOW_IN : FLOW_OUT; }

static int is_set(Text value, int which) { return is(value.at, value.len, which == BINDING ? "\"e\"" : "true"); }

/* A string without its quotes. */
static Text within(Text value) {
    int quoted = *value.at == '"';
    return (Text){value.at + quoted, value.len - 2 * quoted};
}

static uint8_t phase_of(Text value) { return *value.at == '"' && value.len > 2 ? value.at[1] : 0; }

/* Keeps what the event needs of a value. */
static void keep_value(const uint8_t *buf, Text value, int which, Columns *c, Seen *seen, Event *e) {
    if (which < NUM_SPANS) {
        int32_t *span = e->spans + 2 * which;
        span[0] = (int32_t)(value.at - buf), span[1] = (int32_t)value.len;
        if (which == PID || which == TID) e->thread = NULL;
        if (which == ARGS && *value.at != '{') forget_args(c, seen);
    } else if (which == PHASE) {
        c->phase[e->row] = phase_of(value);
    } else if (which == NAME) {
        e->name = within(value);
    } else if (which == CATEGORY) {
        e->category = within(value), e->has_category = 1, e->category_from = NULL;
    } else if (which != OTHER) {
        e->set = is_set(value, which) ? e->set | flag_of(which) : e->set & ~flag_of(which);
    }
}

/* Whether values of a field are mostly those that it had before. */
static int is_mostly_same(int which) {
    return which == PID || which == TID || which == SCOPE || (which >= PHASE && which < OTHER && which != NAME);
}

/* Notes in a gap that this value is part of it. */
static void keep_in_gap(Gap *gap, Text value, int which) {
    Place place = {(int32_t)(value.at - gap->at), (int32_t)value.len};
    if (which == PID) gap->pid = place;
    else if (which == TID) gap->tid = place;
    else if (which == SCOPE) gap->scope = place;
    else if (which == CATEGORY) gap->category = place;
    else if (which == PHASE) gap->phase = phase_of(value);
    else if (is_set(value, which)) gap->set |= flag_of(which), gap->cleared &= ~flag_of(which);
    else gap->cleared |= flag_of(which), gap->set &= ~flag_of(which);
}

/* Puts a gap among those that are remembered, behind the gap `before`; returns its number. */
static int32_t remembered(Seen *seen, int32_t before, const Gap *gap, Event *e) {
    int32_t number = before == NO_GAP ? 1 + seen->num_first++ % (FIRST_GAPS - 1)
                   : FIRST_GAPS + seen->num_others++ % (GAPS - FIRST_GAPS);
    Gap *new = &seen->gaps[number], *last = &seen->gaps[before];
    if (e->thread == new) e->thread = NULL; /* it was another one */
    if (e->category_from == new) e->category_from = NULL;
    *new = *gap;
    last->next[last->turn++ % EXPECTED] = (uint8_t)number;
    return number;
}

/* Reads from behind a value, or from the brace, up to the next value that is not mostly the same, and returns it and the
 * field that it is of; or the place behind the event, and NO_FIELD. NULL where the text ends; sets *ok to 0 where it is
 * damaged. *number is that of the gap before, and becomes that of this one where it is remembered. */
static __attribute__((noinline)) const uint8_t *read_gap(const uint8_t *buf, const uint8_t *p, const uint8_t *end, Columns *c, Seen *seen, Event *e,
                               int32_t *number, int *which, int *ok) {
    Gap gap = {.at = p, .phase = -1, .thread = -1, .category_number = -1};
    uint8_t flags = e->flags;
    e->flags = 0;
    for (int is_first = p == e->from;; is_first = 0) {
        p = next_value(p, end, is_first, which, &e->flags, ok);
        if (!p || !*ok) return p;
        p += *which == NO_FIELD;
        if (!is_mostly_same(*which)) break;
        const uint8_t *value = p;
        p = read_value(value, end, *which, c, seen, e, ok);
        if (!p || !*ok) return p;
        keep_value(buf, (Text){value, p - value}, *which, c, seen, e);
        if (p - gap.at <= LONGEST_GAP) keep_in_gap(&gap, (Text){value, p - value}, *which);
    }
    gap.len = (int32_t)(p - gap.at), gap.which = *which;
    *number = e->flags || p - gap.at > LONGEST_GAP ? GAPS : remembered(seen, *number, &gap, e);
    e->flags |= flags;
    return p;
}

static void keep_span(const uint8_t *buf, const uint8_t *p, Place place, int which, Event *e) {
    e->spans[2 * which] = (int32_t)(p - buf) + place.offset, e->spans[2 * which + 1] = place.len;
}

/* Keeps what the event needs of the values in a gap, which is at p. */
static void keep_gap(const uint8_t *buf, const uint8_t *p, Gap *gap, Columns *c, Event *e) {
    if (gap->pid.len | gap->tid.len) {
        e->thread = gap->pid.len && gap->tid.len ? gap : NULL;
        if (gap->pid.len) keep_span(buf, p, gap->pid, PID, e);
        if (gap->tid.len) keep_span(buf, p, gap->tid, TID, e);
    }
    if (gap->scope.len) keep_span(buf, p, gap->scope, SCOPE, e);
    if (gap->phase >= 0) c->phase[e->row] = (uint8_t)gap->phase;
    if (gap->category.len) {
        e->category = within((Text){p + gap->category.offset, gap->category.len});
        e->has_category = 1, e->category_from = gap;
    }
    e->set = (e->set & ~gap->cleared) | gap->set;
}

/* Number of a gap that is at p, and which came behind this one before; 0 where there is none. */
static int32_t gap_at(const Seen *seen, int32_t before, const uint8_t *p, const uint8_t *end) {
    for (int i = 0; i < EXPECTED; i++) {
        int32_t number = seen->gaps[before].next[i];
        const Gap *gap = &seen->gaps[number];
        if (!number) return 0;
        if (end - p > gap->len && same(p, gap->at, gap->len)) return number;
    }
    return 0;
}

/* Times that are written in an unusual way; none where they are not there. */
static void read_times(const uint8_t *buf, Columns *c, Event *e) {
    int64_t *times[2] = {&c->ts_ns[e->row], &c->dur_ns[e->row]};
    for (int i = 0; i < 2; i++) {
        if (e->is_read[i]) continue;
        Text time = text_of(buf, e, i ? DUR : TS);
        *times[i] = NONE;
        if (time.len && !nanoseconds(time.at, time.len, times[i])) e->flags |= BAD_TIME;
    }
}

/* Numbers of the thread and the category. */
static void write_numbers(const uint8_t *buf, Columns *c, Seen *seen, Event *e) {
    int32_t number = e->category_from ? e->category_from->category_number : -1;
    if (e->has_category && number < 0) number = category_of(c, e->category, seen);
    if (e->category_from) e->category_from->category_number = number;
    c->category[e->row] = number;
    number = e->thread ? e->thread->thread : -1;
    if (number < 0) number = thread_of(c, text_of(buf, e, PID), text_of(buf, e, TID), seen);
    if (e->thread) e->thread->thread = number;
    c->thread[e->row] = number;
}

/* Writes the columns of an event that was read up to p. */
static void write_row(const uint8_t *buf, const uint8_t *p, Columns *c, Seen *seen, Event *e) {
    int64_t row = e->row;
    Text scope = text_of(buf, e, SCOPE);
    read_times(buf, c, e);
    if (scope.len == 3 && !memcmp(scope.at, "\"g\"", 3) && (c->phase[row] | 32) == 'i') e->flags |= GLOBAL;
    if (!e->spans[2 * BIND_ID + 1]) e->set &= ~(FLOW_IN | FLOW_OUT);
    for (int32_t i = 0; c->has_found && i < c->num_wanted; i++) {
        Wanted *w = &c->wanted[i];
        if (w->found_at) w->texts[row] = interner_add(c->texts, w->found_at, w->found_len), w->found_at = NULL;
    }
    c->has_found = 0;
    c->start[row] = (int32_t)(e->from - buf), c->end[row] = (int32_t)(p - buf);
    c->name[row] = name_of(c, e->name, seen);
    write_numbers(buf, c, seen, e);
    c->flags[row] = e->flags | e->set;
    c->num_rows++;
}

/* Reads the event whose brace is at p into the next row, and returns the place behind it. NULL where the text ends inside
 * of it; sets *ok to 0 where it is damaged. */
static const uint8_t *read_event(const uint8_t *buf, const uint8_t *p, const uint8_t *end, Columns *c, Seen *seen, int *ok) {
    Event e = {.from = p, .row = c->num_rows, .name = {p, 0}, .spans = c->spans + 2 * NUM_SPANS * c->num_rows};
    memset(e.spans, 0, 2 * NUM_SPANS * sizeof *e.spans);
    c->phase[e.row] = 0;
    for (int32_t before = NO_GAP;;) {
        int which;
        int32_t number = gap_at(seen, before, p, end);
        if (number) {
            Gap *gap = &seen->gaps[number];
            keep_gap(buf, p, gap, c, &e);
            p += gap->len, which = gap->which, before = number;
            if (which != NO_FIELD && (p = blank(p, end)) >= end) return NULL;
        } else {
            p = read_gap(buf, p, end, c, seen, &e, &before, &which, ok);
            if (!p || !*ok) return p;
        }
        if (which == NO_FIELD) break;
        const uint8_t *value = p;
        p = read_value(value, end, which, c, seen, &e, ok);
        if (!p || !*ok) return p;
        keep_value(buf, (Text){value, p - value}, which, c, seen, &e);
    }
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
    for (int64_t begun = 0;;) { /* rows up to here can be filled */
        while (p < end && (*p == ',' || *p == ' ' || *p == '\n' || *p == '\t' || *p == '\r')) p++;
        *at = p - buf;
        if (p >= end) return MORE;
        if (*p == ']') return *at += 1, ENDED;
        if (c->num_rows == c->max_rows) return FULL;
        if (c->num_rows == begun) {
            int64_t more = c->max_rows - begun < ROWS_AT_ONCE ? c->max_rows - begun : ROWS_AT_ONCE;
            forget_wanted(c, begun, more), begun += more;
        }
        int ok = *p == '{';
        if (ok) p = read_event(buf, p, end, c, &seen, &ok);
        if (!ok) {
            p = c->recovers ? behind_damage(buf + *at, end) : NULL;
            if (!p) return MALFORMED;
            c->num_damaged++, c->lost_bytes += p - buf - *at;
            forget_wanted(c, c->num_rows, 1);
            continue;
        }
        if (!p) return MORE;
        if (c->names->failed | c->categories->failed | c->threads->failed | c->texts->failed) return NO_MEMORY;
    }
}
