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

/* Reads the event whose brace is at p into the next row, and returns the place behind it. NULL where the text ends inside
 * of it; sets *ok to 0 where it is damaged.
 *
 * Each turn of the loop reads a key and its value. The gap before the value (comma, key, colon, blanks) is compared with
 * the one that stood there in the last event of this kind, and only read where it differs. */
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
    if (!field[BIND_ID].len) flags &= ~(FLOW_IN | FLOW_OUT);
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
