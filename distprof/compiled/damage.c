/* Damage: where reading goes on behind what is no event. ../damage.py says the same in Python. */

#define AHEAD 4096 /* so much text shows what stands behind damage */

static int is_blank(uint8_t c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

/* The place behind the last byte before p that is not blank, `from` at the least. */
static const uint8_t *blank_before(const uint8_t *from, const uint8_t *p) {
    while (p > from && is_blank(p[-1])) p--;
    return p;
}

/* 1 where the string at the quote p is "ph" and a colon follows. */
static int is_phase_key(const uint8_t *p, const uint8_t *end) {
    if (end - p < 5 || memcmp(p, "\"ph\"", 4)) return 0;
    p = blank(p + 4, end);
    return p < end && *p == ':';
}

/* 1 where the object at p has a phase of its own, not in an object within it. */
static int has_phase(const uint8_t *p, const uint8_t *end) {
    uint8_t flags = 0;
    int depth = 0;
    if (end - p > AHEAD) end = p + AHEAD;
    while (p < end) {
        if (*p == '"') {
            if (depth == 1 && is_phase_key(p, end)) return 1;
            p = string_end(p + 1, end, &flags);
            if (!p) return 0;
        } else if (*p == '{') {
            depth++;
        } else if (*p == '}' && --depth <= 0) {
            return 0;
        }
        p++;
    }
    return 0;
}

/* Where behind the damage at `from` an event seems to begin: one that begins with its phase and is not the value of a key,
 * or one behind another one and a comma that has a phase. NULL where none does before `end`. */
static const uint8_t *next_event(const uint8_t *from, const uint8_t *end) {
    for (const uint8_t *p = from + 1; p < end && (p = memchr(p, '{', end - p)); p++) {
        const uint8_t *key = blank(p + 1, end), *before = blank_before(from, p);
        if (key >= end || *key != '"') continue;
        if (is_phase_key(key, end)) {
            if (before > from && before[-1] == ':') {
                before = blank_before(from, before - 1);
                if (before > from && before[-1] == '"') continue;
            }
            return p;
        }
        if (before == from || before[-1] != ',') continue;
        before = blank_before(from, before - 1);
        if (before > from && before[-1] == '}' && has_phase(p, end)) return p;
    }
    return NULL;
}

/* The place of next_event() in the text, or -1. */
int64_t find_event(const uint8_t *buf, int64_t at, int64_t end) {
    const uint8_t *found = at < end ? next_event(buf + at, buf + end) : NULL;
    return found ? found - buf : -1;
}

/* Behind the value at p, by its brackets and quotes alone; `end` is at most AHEAD bytes away. NULL where it is not whole. */
static const uint8_t *loose_end(const uint8_t *p, const uint8_t *end) {
    uint8_t closing[AHEAD], flags = 0;
    int depth = 0;
    do {
        if (*p == '"') {
            p = string_end(p + 1, end, &flags);
            if (!p) return NULL;
        } else if (*p == '{' || *p == '[') {
            closing[depth++] = *p == '{' ? '}' : ']';
        } else if (*p == '}' || *p == ']') {
            if (!depth || *p != closing[--depth]) return NULL;
        } else if (!depth) { /* a number or a word */
            const uint8_t *from = p;
            while (p < end && *p > ' ' && !strchr("\"{}[],:", *p)) p++;
            return p == from || p == end ? NULL : p;
        }
        p++;
    } while (depth && p < end);
    return depth ? NULL : p;
}

/* Behind the value at p that is no object but whole, and before a comma or the end of the array; NULL where it is none. */
static const uint8_t *element_end(const uint8_t *p, const uint8_t *end) {
    p = *p != '{' ? loose_end(p, end) : NULL;
    if (!p) return NULL;
    p = blank(p, end);
    return p < end && (*p == ',' || *p == ']') ? p : NULL;
}

/* Where reading goes on behind the damage at p; NULL where the text does not show it. */
static const uint8_t *behind_damage(const uint8_t *p, const uint8_t *end) {
    if (end - p < AHEAD) return NULL;
    const uint8_t *behind = element_end(p, p + AHEAD);
    if (behind) return behind;
    behind = next_event(p, end);
    return behind && end - behind >= AHEAD ? behind : NULL;
}
