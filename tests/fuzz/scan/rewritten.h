/* Rewriting events with numbers that are drawn, and what JSON says of the result. */

static uint64_t chance(uint64_t *state, uint64_t below) {
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state % below;
}

typedef struct {
    uint8_t *keep;
    int64_t *pid, *tid, *ts_ns, *dur_ns, *links;
} Numbers;

static Numbers new_numbers(int64_t rows, uint64_t seed) {
    static const int64_t extremes[] = {0, 1, -1, INT64_MAX, INT64_MIN + 1, NONE, 1234567};
    Numbers n = {.keep = malloc(rows + 1)};
    int64_t **const columns[] = {&n.pid, &n.tid, &n.ts_ns, &n.dur_ns, &n.links};
    for (int i = 0; i < 5; i++) *columns[i] = malloc((rows + 1) * sizeof(int64_t));
    for (int64_t row = 0; row < rows; row++) {
        n.keep[row] = (const uint8_t[]){0, 1, 1, NO_ARROW}[chance(&seed, 4)];
        for (int i = 0; i < 5; i++) (*columns[i])[row] = extremes[chance(&seed, 7)];
    }
    return n;
}

static void free_numbers(Numbers *n) {
    free(n->keep), free(n->pid), free(n->tid), free(n->ts_ns), free(n->dur_ns), free(n->links);
}

static int is_value(const Json *json, const char *key, const char *text) {
    const JsonMember *member = json_last(json, key);
    return member && member->value_len == (int64_t)strlen(text) && !memcmp(member->value, text, member->value_len);
}

static const char *decimal(int64_t value) {
    static char text[32];
    return snprintf(text, sizeof text, "%lld", (long long)value), text;
}

static const char *thousandth(int64_t value) {
    static char text[32];
    unsigned long long size = value < 0 ? 0 - (unsigned long long)value : (unsigned long long)value;
    return snprintf(text, sizeof text, "%s%llu.%03llu", value < 0 ? "-" : "", size / 1000, size % 1000), text;
}

/* The value of a key is, byte by byte, what it was. */
static int is_as_before(const Json *before, const Json *behind, const char *key) {
    const JsonMember *old = json_last(before, key), *new = json_last(behind, key);
    if (!old || !new) return !old && !new;
    return old->value_len == new->value_len && !memcmp(old->value, new->value, old->value_len);
}

static void check_rewritten(const Columns *c, int64_t row, const Numbers *n, const uint8_t *buf, const Json *behind) {
    static const char *const kept[] = {"args", "name", "cat", "ph", "bp", "flow_in", "flow_out", "other"};
    const int32_t *spans = c->spans + 2 * NUM_SPANS * row;
    Json before;
    json_object(&before, buf + c->start[row], buf + c->end[row]);
    if (before.num_members == 64 || behind->num_members == 64) return;
    for (unsigned i = 0; i < sizeof kept / sizeof *kept; i++)
        expect(is_as_before(&before, behind, kept[i]), "what is no number passes through");
    expect(is_value(behind, "pid", decimal(n->pid[row])), "the process is new");
    expect(is_value(behind, "tid", decimal(n->tid[row])), "the thread is new");
    if (spans[2 * TS + 1] && n->ts_ns[row] != NONE) expect(is_value(behind, "ts", thousandth(n->ts_ns[row])), "a new time");
    else expect(is_as_before(&before, behind, "ts"), "the time of before");
    if (n->dur_ns[row] != NONE) expect(is_value(behind, "dur", thousandth(n->dur_ns[row])), "a new duration");
    else expect(is_as_before(&before, behind, "dur"), "the duration of before");
    if (c->flags[row] & GLOBAL) expect(is_value(behind, "s", "\"p\""), "no instant is global");
    else expect(is_as_before(&before, behind, "s"), "the scope of before");
    if (!spans[2 * BIND_ID + 1]) return;
    if (n->keep[row] == NO_ARROW) expect(is_value(behind, "bind_id", "null"), "no arrow");
    else if (n->links[row] != NONE) expect(is_value(behind, "bind_id", decimal(n->links[row])), "a new arrow");
}

/* The events that stay follow each other in strict JSON, where they were that. */
static void check_output(const Columns *c, const Numbers *n, const uint8_t *buf, const uint8_t *out, int64_t length) {
    const uint8_t *p = out, *end = out + length;
    for (int64_t row = 0; row < c->num_rows; row++) {
        if (!n->keep[row]) continue;
        if (p != out) {
            expect(end - p > 2 && p[0] == ',' && p[1] == '\n', "a comma between events");
            p += 2;
        }
        if (c->flags[row] & REPAIR) return; /* it is repaired before it is rewritten: nothing is said of such text */
        Json behind;
        expect(json_object(&behind, p, end) && !behind.is_odd, "what is rewritten is strict JSON");
        check_rewritten(c, row, n, buf, &behind);
        p = behind.p;
    }
    expect(p == end, "nothing but events is written");
}

static void check_links(const uint8_t *buf, const Columns *c, const int64_t *links) {
    Text last = {NULL, 0};
    int64_t its = NONE;
    for (int64_t row = 0; row < c->num_rows; row++) {
        const int32_t *id = c->spans + 2 * (NUM_SPANS * row + (IS_LINKED[c->phase[row]] ? ID : BIND_ID));
        if (!id[1]) continue;
        Text text = {buf + id[0], id[1]};
        expect(links[row] != NONE && links[row] >= 0, "an id has a number");
        if (last.at && last.len == text.len && !memcmp(last.at, text.at, text.len))
            expect(links[row] == its, "equal ids have equal numbers");
        last = text, its = links[row];
    }
}

static void rewrite(const uint8_t *buf, const Columns *c, Interner *ids, uint64_t seed, int checks) {
    int64_t rows = c->num_rows, *links = malloc((rows + 1) * sizeof *links);
    if (link_rows(buf, c, ids, links) && checks) check_links(buf, c, links);
    free(links);
    Numbers n = new_numbers(rows, seed);
    int64_t room = rows ? c->end[rows - 1] - c->start[0] + 192 * rows : 0;
    uint8_t *out = malloc(room);
    int64_t length = rewrite_events(buf, c, n.keep, n.pid, n.tid, n.ts_ns, n.dur_ns, n.links, ids, INT64_C(7) << 32, out);
    expect(length <= room && (length >= 0 || ids->failed), "rewritten events fit");
    if (length >= 0 && checks) check_output(c, &n, buf, out, length);
    free(out), free_numbers(&n);
}
