/* Drives the compiled merge engine over mutated traces in buffers of their exact size: built with AddressSanitizer and UBSan, any byte
 * touched outside of them ends the program. `fuzz_scan SEED COUNT FILE...` prints how many events it read; `fuzz_scan`
 * alone tries what is very long or very deep.
 */
#include "../../fuzz/scan/engine_under_test.h"

static uint64_t state = 88172645463325252u;

static uint64_t chance(uint64_t below) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return below ? state % below : 0;
}

/* ---- texts --------------------------------------------------------------------------------------------------------- */

static const char *const PIECES[] = {
    "{", "}", "[", "]", ",", ":", "\"", "\\", "\\u", "\\ud83d", "\\u12", "\n", "\n      ", "  ", "\t", "\r\n", "null",
    "true", "NaN", "-inf", "-", "+", ".", "e", "1e", "1e999999999999", "1e-999999999999", "0.0000001", "01",
    "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809", "18446744073709551615",
    "4611686018427387.903", "4611686018427387.904", "99999999999999999999999999999999", "\"ph\":\"X\",", "\"ph\": ",
    "\"args\": {", "\"args\":{}", "\"s\":\"g\",\"ph\":\"i\",", "\"id\":\"0x1f\",", "\"bind_id\":",
    "\"id2\":{\"global\":", "\"id2\": {\"local\":1},", "\"flow_in\":true,", "\"flow_out\": true,", "\"bp\":\"e\",", "\"External id\": 7,",
    "\"Comms Id\":", "\"pid\":", "\"tid\": ", "\"ts\": ", "\"dur\": ", "{},", "},{", "}\n,\n{", "\x80", "\xff", "\xc3\xa9",
    "\x01",
};

typedef struct {
    uint8_t *at;
    int64_t len;
} Buffer;

/* A copy with `cut` bytes at `place` replaced by others. */
static Buffer spliced(Buffer old, int64_t place, int64_t cut, const void *with, int64_t len) {
    Buffer new = {malloc(old.len - cut + len + 1), old.len - cut + len};
    memcpy(new.at, old.at, place);
    memcpy(new.at + place, with, len);
    memcpy(new.at + place + len, old.at + place + cut, old.len - place - cut);
    free(old.at);
    return new;
}

static Buffer mutated(Buffer text) {
    int64_t place = chance(text.len + 1), left = text.len - place, length = chance(chance(2) ? 4 : 400);
    const char *piece = PIECES[chance(sizeof PIECES / sizeof *PIECES)];
    uint8_t bytes[2] = {(uint8_t)chance(256), (uint8_t)chance(256)};
    if (length > left) length = left;
    switch (chance(6)) {
    case 0: return spliced(text, place, left > 0, bytes, left > 0); /* another byte */
    case 1: return spliced(text, place, length, "", 0);
    case 2: return spliced(text, place, 0, piece, strlen(piece));
    case 3: return spliced(text, place, length, piece, strlen(piece));
    case 4: return spliced(text, place, 0, bytes, 1 + chance(2));
    default: { /* a part once more, elsewhere */
        uint8_t *part = malloc(length + 1);
        memcpy(part, text.at + place, length);
        text = spliced(text, chance(text.len + 1), 0, part, length);
        free(part);
        return text;
    }
    }
}

/* A part of a text in a buffer without a byte to spare. */
static Buffer part_of(Buffer text, int64_t from, int64_t to) {
    Buffer part = {malloc(to - from), to - from};
    if (to > from) memcpy(part.at, text.at + from, to - from);
    return part;
}

/* ---- what is driven ------------------------------------------------------------------------------------------------ */

static void rewrite_rows(const uint8_t *text, const Columns *c, Interner *ids) {
    static const int64_t extremes[] = {0, 1, -1, INT64_MAX, INT64_MIN + 1, NONE, 1234567};
    int64_t rows = c->num_rows, *numbers[4];
    uint8_t *keep = malloc(rows + 1);
    for (int i = 0; i < 4; i++) numbers[i] = malloc((rows + 1) * sizeof(int64_t));
    for (int64_t row = 0; row < rows; row++) {
        keep[row] = (const uint8_t[]){0, 1, 1, NO_ARROW}[chance(4)];
        for (int i = 0; i < 4; i++) numbers[i][row] = extremes[chance(7)];
    }
    int64_t *links = malloc((rows + 1) * sizeof *links);
    link_rows(text, c, ids, links);
    for (int64_t row = 0; row < rows; row++)
        if (chance(2)) links[row] = extremes[chance(7)];
    int64_t room = rows ? c->end[rows - 1] - c->start[0] + 192 * rows : 0;
    uint8_t *out = malloc(room);
    int64_t length = rewrite_events(text, c, keep, numbers[0], numbers[1], numbers[2], numbers[3], links, ids,
                                    INT64_C(7) << 32, out);
    expect(length <= room && (length >= 0 || ids->failed), "rewritten events fit");
    free(out), free(links), free(keep);
    for (int i = 0; i < 4; i++) free(numbers[i]);
}

static int64_t drive(Buffer text) {
    Columns c = new_columns(1 + chance(chance(2) ? 3 : 300), (int)chance(5), (int)chance(2));
    Interner *ids = new_interner();
    int64_t at = 0, events = 0;
    for (int damages = 0; damages < 50;) {
        int64_t from = at;
        int32_t status = scan_events(text.at, text.len, &at, &c);
        expect(at >= from && at <= text.len, "reading goes on");
        expect(status != FULL || c.num_rows == c.max_rows, "room for rows is used");
        if (status == NO_MEMORY) break;
        check_rows(&c, from, at);
        rewrite_rows(text.at, &c, ids);
        events += c.num_rows;
        if (status == MORE) break;
        if (status == MALFORMED) at++, damages++;
    }
    free_columns(&c), interner_free(ids);
    return events;
}

static void overlap(void) {
    Lanes *l;
    while (!(l = lanes_new(chance(5), 1 + (int32_t)chance(4)))) until_failure = -1;
    int64_t last = 0, known = 1;
    for (int64_t part = chance(5); part && known; part--) {
        int64_t n = chance(100), *numbers[4];
        int32_t *thread = malloc((n + 1) * 4), *lane = malloc((n + 1) * 4);
        for (int i = 0; i < 4; i++) numbers[i] = calloc(n + 1, sizeof(int64_t));
        for (int64_t i = 0; i < n; i++) {
            numbers[0][i] = i, numbers[1][i] = last += chance(3), numbers[2][i] = chance(4) ? (int64_t)chance(100) : chance(2) ? AROUND : FOLLOWING;
            if (!chance(50)) numbers[2][i] = LATEST - 1;
            thread[i] = (int32_t)(last / 60);
        }
        known = lanes_add(l, n, numbers[0], thread, numbers[1], numbers[2], lane, numbers[3]);
        for (int64_t i = 0; known && i < n; i++) expect(lane[i] >= -1 && lane[i] < l->max_lanes, "a lane is one of those");
        for (int64_t i = 0; known && i < lanes_num_late(l); i++)
            expect((lanes_late(l)[i].lane < 0) != (lanes_late(l)[i].cut < 0), "late is a lane or a cut");
        for (int i = 0; i < 4; i++) free(numbers[i]);
        free(thread), free(lane);
    }
    lanes_free(l);
}

/* Strings get the same number twice, with or without memory for all. */
static void intern(void) {
    uint8_t text[64] = {0};
    int64_t count = chance(3000);
    Interner *in = new_interner();
    for (int64_t i = 0; i < count && !in->failed; i++) {
        memcpy(text, &i, sizeof i);
        int32_t number = interner_add(in, text, i % sizeof text);
        expect(number == interner_add(in, text, i % sizeof text) || in->failed, "equal strings have equal numbers");
        expect(number < interner_count(in), "numbers count up");
    }
    interner_free(in);
}

/* One event with `count` times `piece` inside. */
static int64_t repeated(const char *before, const char *piece, int64_t count, const char *behind) {
    int64_t size = strlen(before) + strlen(piece) * count + strlen(behind);
    Buffer text = {malloc(size), size};
    uint8_t *out = text.at;
    memcpy(out, before, strlen(before)), out += strlen(before);
    for (; count; count--) memcpy(out, piece, strlen(piece)), out += strlen(piece);
    memcpy(out, behind, strlen(behind));
    int64_t events = drive(text);
    free(text.at);
    return events;
}

static void limits(void) {
    const int64_t million = 1000000, megabytes = 300 << 20;
    expect(repeated("", "", 0, "") == 0, "no text has no events");
    expect(repeated("{\"args\":", "[", million, "") == 0, "arrays in arrays are cut or damage");
    expect(repeated("{\"args\":", "{\"a\":", million, "1}") == 0, "objects in objects are cut or damage");
    expect(repeated("{\"args\":", "[", 255, "") == 0 && repeated("[", "[", million, "]") == 0, "no events");
    expect(repeated("{\"name\":\"", "x", megabytes, "\"}") == 1, "a long string is one");
    expect(repeated("{\"pid\":\"", "x", megabytes, "\",\"id\":2}") == 1, "a long pid is one");
    expect(repeated("{\"name\":\"", "\\\"", megabytes / 2, "\"}") == 1, "a string of escapes is one");
    expect(repeated("{\"ts\":", "9", million, "}") == 1, "a long integer is a bad time");
    expect(repeated("{\"ts\":0.", "0", million, "1e1000003}") == 1, "a long fraction is a time");
    expect(repeated("{\"id\":", "9", million, ",\"ph\":\"s\"}") == 1, "a long id is an id");
    expect(repeated("{", " ", megabytes, "}") == 1, "blanks are nothing");
    expect(repeated("", "{},", million, "") == million, "empty events are events");
}

static Buffer file_of(const char *path) {
    FILE *file = fopen(path, "rb");
    expect(file != NULL, path);
    fseek(file, 0, SEEK_END);
    Buffer text = {malloc(ftell(file)), ftell(file)};
    rewind(file);
    expect(fread(text.at, 1, text.len, file) == (size_t)text.len, "read");
    fclose(file);
    return text;
}

int main(int argc, char **argv) {
    if (argc < 2) return limits(), 0;
    state += strtoull(argv[1], NULL, 10) * 2654435761u;
    int64_t count = atoll(argv[2]), events = 0;
    for (int64_t i = 0; i < count; i++) {
        Buffer file = file_of(argv[3 + chance(argc - 3)]);
        for (int64_t changes = chance(5); changes; changes--) file = mutated(file);
        int64_t from = chance(2) ? 0 : chance(file.len + 1), to = chance(2) ? file.len : from + (int64_t)chance(file.len - from + 1);
        Buffer text = part_of(file, from, to);
        until_failure = chance(8) ? -1 : (int64_t)chance(60);
        events += drive(text);
        overlap(), intern();
        until_failure = -1;
        free(text.at), free(file.at);
    }
    printf("%lld events\n", (long long)events);
    return 0;
}
