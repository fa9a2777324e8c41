/* libFuzzer target: what scans, links and rewrites of the compiled engine find in a text.
 *
 * The first four bytes say how it is scanned, the rest is the array of events from behind its bracket on. The measure is a
 * plain scan: an event a scan, so that nothing is remembered of the one before. JSON says which of its events are right;
 * any other way to scan (all at once, in windows, with keys of args, skimming) has to find the same.
 */
#include "engine_under_test.h"
#include "strict_json.h"
#include "rewritten.h"

enum { MOST_ROWS = 400, MOST_STOPS = 20 };

/* An event, or a place where a scan stopped (`status`), in the order of the text. */
typedef struct {
    int32_t status; /* FULL for an event */
    int64_t start, end, ts_ns, dur_ns, integers[2];
    int32_t name, category, thread, texts[2], spans[2 * NUM_SPANS];
    uint8_t phase, flags;
} Found;

typedef struct {
    int num_wanted, skims, num_names; /* so many names are known before */
    int64_t max_rows, ends[3]; /* windows end there */
    uint64_t seed;
} How;

typedef struct {
    Found found[MOST_ROWS + MOST_STOPS];
    int count, stops;
} Finds;

static Found row_of(const Columns *c, int64_t row) {
    Found one = {.status = FULL, .start = c->start[row], .end = c->end[row], .ts_ns = c->ts_ns[row],
                 .dur_ns = c->dur_ns[row], .name = c->name[row], .category = c->category[row],
                 .thread = c->thread[row], .phase = c->phase[row], .flags = c->flags[row]};
    memcpy(one.spans, c->spans + 2 * NUM_SPANS * row, sizeof one.spans);
    for (int i = 0; i < c->num_wanted; i++)
        if (i % 2) one.texts[i / 2] = c->wanted[i].texts[row];
        else one.integers[i / 2] = c->wanted[i].integers[row];
    return one;
}

/* The begin of a text in a buffer without a byte to spare. */
static uint8_t *window_of(const uint8_t *text, int64_t end) {
    uint8_t *part = malloc(end);
    if (end) memcpy(part, text, end);
    return part;
}

/* Scans all of a text, window after window; goes on behind damage. */
static void scan_all(const uint8_t *text, int64_t len, const How *how, Finds *finds) {
    Columns c = new_columns(how->max_rows, how->num_wanted, how->skims);
    Interner *ids = new_interner();
    for (int i = 0; i < how->num_names; i++) interner_add(i % 2 ? c.names : ids, (uint8_t *)&i, sizeof i);
    int64_t at = 0, end = 0;
    int window = 0, is_checked = until_failure < 0;
    uint8_t *part = window_of(text, 0);
    finds->count = finds->stops = 0;
    while (finds->stops < MOST_STOPS && finds->count < MOST_ROWS) {
        int64_t wanted = window < 3 ? how->ends[window] : len, from = at;
        if (wanted > end) free(part), part = window_of(text, end = wanted);
        int32_t status = scan_events(part, end, &at, &c);
        expect(at >= from && at <= end, "reading goes on");
        expect(status != FULL || c.num_rows == c.max_rows, "room for rows is used");
        if (status != NO_MEMORY) check_rows(&c, from, at), rewrite(part, &c, ids, how->seed, is_checked && !how->skims);
        for (int64_t row = 0; status != NO_MEMORY && row < c.num_rows && finds->count < MOST_ROWS; row++)
            finds->found[finds->count++] = row_of(&c, row);
        if (status == NO_MEMORY) break;
        if (status == MORE && window++ < 3) continue;
        if (status == FULL) continue;
        finds->found[finds->count++] = (Found){.status = status, .start = at}, finds->stops++;
        if (status == MORE) break;
        at += status == MALFORMED;
    }
    free(part), free_columns(&c), interner_free(ids);
}

/* Digits, quoted or not, as far as 64 bits hold them. */
static int64_t integer_of(const JsonMember *member) {
    if (!member) return NONE;
    const uint8_t *p = member->value, *end = p + member->value_len;
    if (*p == '"') p++, end--;
    int negative = p < end && *p == '-';
    __int128 value = 0;
    if ((p += negative) == end) return NONE;
    for (; p < end; p++) {
        if (*p < '0' || *p > '9') return NONE;
        value = value * 10 + (*p - '0');
        if (value > INT64_MAX) return NONE;
    }
    return (int64_t)(negative ? -value : value);
}

/* Fields are the last ones of their keys, and those of args that are wanted are, too. */
static void check_fields(const uint8_t *text, const Found *one, const Json *json) {
    static const char *const keys[NUM_SPANS] = {
        [PID] = "pid", [TID] = "tid", [TS] = "ts", [DUR] = "dur", [ID] = "id", [ID2] = "id2", [BIND_ID] = "bind_id",
        [SCOPE] = "s", [ARGS] = "args"};
    if (json->num_members == 64) return;
    for (int which = 0; which < NUM_SPANS; which++) {
        const JsonMember *member = json_last(json, keys[which]);
        const int32_t *span = one->spans + 2 * which;
        expect(member ? text + span[0] == member->value && span[1] == member->value_len : !span[1], "fields are the last ones");
    }
    if (one->flags & (FLOW_IN | FLOW_OUT)) expect(json_last(json, "bind_id") != NULL, "an arrow of a slice has an id");
    const JsonMember *phase = json_last(json, "ph"), *args = json_last(json, "args");
    expect(one->phase == (phase && *phase->value == '"' && phase->value_len > 2 ? phase->value[1] : 0), "the phase is the last");
    Json inner = {.num_members = 0};
    if (args && *args->value == '{') json_object(&inner, args->value, args->value + args->value_len);
    if (inner.num_members == 64) return;
    for (int i = 0; i < 4; i++) {
        const JsonMember *member = json_last(&inner, ((const char *[]){"External id", "Comms Id", "a", "Input Dims"})[i]);
        if (i % 2) expect((one->texts[i / 2] >= 0) == (member != NULL), "a text of args is there or not");
        else expect(one->integers[i / 2] == integer_of(member), "an integer of args is the last one");
    }
}

/* A plain scan finds what JSON says: strict events and no others are free of REPAIR. */
static void check_against_json(const uint8_t *text, int64_t len, const Finds *plain) {
    for (int i = 0; i < plain->count; i++) {
        const Found *one = &plain->found[i];
        if (one->status == ENDED) continue;
        Json json;
        int is_strict = one->start < len && json_object(&json, text + one->start, text + len);
        if (one->status != FULL) {
            expect(!is_strict, "an event is neither damaged nor cut");
            continue;
        }
        is_strict = is_strict && !json.is_odd;
        expect(is_strict == !(one->flags & REPAIR) || json.is_vague, "what is no strict JSON, and only that, is repaired");
        if (!is_strict || (one->flags & REPAIR)) continue;
        expect(json.p == text + one->end, "an event ends with its brace");
        check_fields(text, one, &json);
        uint8_t high = 0;
        for (int64_t at = one->start; at < one->end; at++) high |= text[at] & 0x80;
        expect(!high == !(one->flags & NON_ASCII), "bytes above 127 are noticed");
    }
}

/* Another way of scanning finds the same; skimming as long as there is nothing to repair. */
static void check_same(const Finds *plain, const Finds *other, int skims, int num_wanted) {
    for (int i = 0; i < plain->count && i < MOST_ROWS; i++) {
        Found a = plain->found[i];
        if (skims && ((a.flags & REPAIR) || a.status == MALFORMED || a.status == MORE)) return;
        expect(i < other->count, "every scan finds all events");
        Found b = other->found[i];
        expect(a.status == b.status && a.start == b.start, "every scan stops at the same places");
        if (a.status != FULL) continue;
        if (skims) b.flags = a.flags = (a.flags & ~NON_ASCII); /* what args hold goes unseen */
        for (int w = num_wanted; w < 4; w++)
            if (w % 2) a.texts[w / 2] = b.texts[w / 2];
            else a.integers[w / 2] = b.integers[w / 2];
        expect(a.end == b.end && a.flags == b.flags && a.phase == b.phase, "every scan finds the same events");
        expect(a.ts_ns == b.ts_ns && a.dur_ns == b.dur_ns, "every scan finds the same times");
        expect(a.name == b.name && a.category == b.category && a.thread == b.thread, "every scan finds the same texts");
        expect(!memcmp(a.spans, b.spans, sizeof a.spans), "every scan finds the same fields");
        expect(!memcmp(a.integers, b.integers, sizeof a.integers), "every scan finds the same integers of args");
        if (num_wanted == 4) expect(!memcmp(a.texts, b.texts, sizeof a.texts), "every scan finds the same texts of args");
    }
}

#ifdef LIBFUZZER
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);

/* An event once more, somewhere else, changed a little or not: what is remembered of events matters where they look alike. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
    uint64_t state = seed + 1;
    if (size < 8 || chance(&state, 3)) return LLVMFuzzerMutate(data, size, max_size);
    size_t from = 4 + chance(&state, size - 4), to, place = 4 + chance(&state, size - 4);
    while (from < size && data[from] != '{') from++;
    for (to = from; to < size && data[to] != '}';) to++;
    while (to < size && data[to] == '}') to++; /* those of args and of the event */
    while (place < size && data[place] != '{') place++;
    size_t length = to - from;
    if (!length || place >= size || size + length + 1 > max_size) return LLVMFuzzerMutate(data, size, max_size);
    uint8_t *event = malloc(length);
    memcpy(event, data + from, length);
    memmove(data + place + length + 1, data + place, size - place);
    memcpy(data + place, event, length), data[place + length] = ',';
    free(event);
    return chance(&state, 2) ? LLVMFuzzerMutate(data, size + length + 1, max_size) : size + length + 1;
}
#endif

static int64_t end_of(uint8_t byte, int64_t len) { return len * byte / 256; }

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 4) return 0;
    const uint8_t *text = data + 4;
    int64_t len = (int64_t)size - 4;
    static Finds plain, other;
    int num_names = data[3] % 4 == 3 ? 1020 : 0; /* there is room for 512 each at first */
    How measure = {.num_wanted = 4, .num_names = num_names, .max_rows = 1, .ends = {len, len, len}, .seed = 1 + data[2]};
    scan_all(text, len, &measure, &plain);
    check_against_json(text, len, &plain);
    int64_t first = end_of(data[2], len), second = end_of(data[3], len);
    How how = {.num_wanted = data[0] / 2 % 5, .skims = data[0] % 2, .num_names = num_names,
               .max_rows = data[1] < 200 ? 1 + data[1] % 16 : MOST_ROWS,
               .ends = {first, second > first ? second : first, len}, .seed = 1 + data[3]};
    int skims = how.skims && !how.num_wanted;
    if (data[0] >= 240) until_failure = data[2]; /* memory ends somewhere: nothing is said of what is found */
    scan_all(text, len, &how, &other);
    if (data[0] < 240) check_same(&plain, &other, skims, how.num_wanted);
    until_failure = -1;
    return 0;
}
