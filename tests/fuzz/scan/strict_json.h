/* JSON by the letter of RFC 8259, read by recursion and a byte at a time: it shares nothing with the engine it judges. */

#define MOST_LEVELS 257 /* an event and what it nests; deeper ones are damage */

typedef struct {
    const uint8_t *key, *value;
    int64_t key_len, value_len;
} JsonMember;

typedef struct {
    const uint8_t *p, *end;
    int is_cut;    /* the text ended inside of a value */
    int is_odd;    /* it is JSON, and a viewer trips over it: an integer above 64 bits, an escaped surrogate */
    int is_vague;  /* it is JSON, and older viewers trip over it: a backslash ends a string */
    int num_members;
    JsonMember members[64]; /* of the outermost object, the first ones */
} Json;

static inline int json_byte(Json *j) {
    if (j->p < j->end) return *j->p;
    j->is_cut = 1;
    return -1;
}

static inline void json_blank(Json *j) {
    while (j->p < j->end && strchr(" \t\r\n", *j->p) && *j->p) j->p++;
}

static inline int json_hex(Json *j, int *value) {
    *value = 0;
    for (int i = 0; i < 4; i++, j->p++) {
        int c = json_byte(j), digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10
            : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0) return 0;
        *value = *value * 16 + digit;
    }
    return 1;
}

static inline int json_string(Json *j) {
    if (json_byte(j) != '"') return 0;
    for (j->p++;;) {
        int c = json_byte(j), code;
        if (c < 32) return 0;
        j->p++;
        if (c == '"') return j->is_vague |= j->p[-2] == '\\', 1;
        if (c != '\\') continue;
        c = json_byte(j);
        if (c < 1 || !strchr("\"\\/bfnrtu", c)) return 0;
        j->p++;
        if (c != 'u') continue;
        if (!json_hex(j, &code)) return 0;
        j->is_odd |= code >= 0xD800 && code < 0xE000;
    }
}

static inline int json_digits(Json *j) {
    int64_t count = 0;
    for (; j->p < j->end && *j->p >= '0' && *j->p <= '9'; j->p++) count++;
    if (!count) json_byte(j);
    return count > 0;
}

static inline int json_number(Json *j) {
    const uint8_t *from = j->p;
    if (*j->p == '-') j->p++;
    const uint8_t *whole = j->p;
    if (!json_digits(j) || (*whole == '0' && j->p - whole > 1)) return 0;
    const uint8_t *behind = j->p;
    if (j->p < j->end && *j->p == '.') {
        j->p++;
        if (!json_digits(j)) return 0;
    }
    if (j->p < j->end && (*j->p == 'e' || *j->p == 'E')) {
        j->p++;
        if (j->p < j->end && (*j->p == '-' || *j->p == '+')) j->p++;
        if (!json_digits(j)) return 0;
    }
    if (behind == j->p) { /* an integer: as far as 64 bits hold it, strtoll does not overflow */
        char text[32];
        if (j->p - from >= (int)sizeof text) return j->is_odd = 1;
        memcpy(text, from, j->p - from), text[j->p - from] = 0;
        __int128 value = 0;
        for (const char *c = text + (*text == '-'); *c; c++) value = value * 10 + (*c - '0');
        if (*text == '-') value = -value;
        j->is_odd |= value > INT64_MAX || value < INT64_MIN;
    }
    return 1;
}

static inline int json_word(Json *j, const char *word) {
    for (; *word; word++, j->p++)
        if (json_byte(j) != *word) return 0;
    return 1;
}

static inline int json_value(Json *j, int levels);

static inline int json_list(Json *j, int levels) {
    int is_object = *j->p == '{', closing = is_object ? '}' : ']';
    if (levels < 1) return 0;
    j->p++, json_blank(j);
    if (json_byte(j) == closing) return j->p++, 1;
    for (;;) {
        JsonMember member = {.key = j->p};
        if (is_object) {
            if (!json_string(j)) return 0;
            member.key_len = j->p - member.key;
            json_blank(j);
            if (json_byte(j) != ':') return 0;
            j->p++, json_blank(j);
        }
        member.value = j->p;
        if (!json_value(j, levels - 1)) return 0;
        member.value_len = j->p - member.value;
        if (levels == MOST_LEVELS && j->num_members < 64) j->members[j->num_members++] = member;
        json_blank(j);
        int c = json_byte(j);
        if (c == closing) return j->p++, 1;
        if (c != ',') return 0;
        j->p++, json_blank(j);
    }
}

static inline int json_value(Json *j, int levels) {
    int c = json_byte(j);
    switch (c) {
    case -1: return 0;
    case '"': return json_string(j);
    case '{': case '[': return json_list(j, levels);
    case 't': return json_word(j, "true");
    case 'f': return json_word(j, "false");
    case 'n': return json_word(j, "null");
    default: return c == '-' || (c >= '0' && c <= '9') ? json_number(j) : 0;
    }
}

/* Whether an object begins at `p` and is whole; then j.p is behind it. */
static inline int json_object(Json *j, const uint8_t *p, const uint8_t *end) {
    *j = (Json){.p = p, .end = end};
    return json_byte(j) == '{' && json_list(j, MOST_LEVELS);
}

/* Whether a string, which is strict JSON, stands for a text. */
static inline int json_is_text(const uint8_t *string, int64_t len, const char *text) {
    Json j = {.p = string + 1, .end = string + len - 1};
    for (; *text && j.p < j.end; text++) {
        int c = *j.p++;
        if (c == '\\' && *j.p++ != 'u') c = strchr("\"\\/", j.p[-1]) ? j.p[-1] : -1;
        else if (c == '\\' && !json_hex(&j, &c)) return 0;
        if (c != *text) return 0;
    }
    return !*text && j.p == j.end;
}

/* The last value of a key of the object, as viewers take it; NULL where there is none. */
static inline const JsonMember *json_last(const Json *j, const char *key) {
    for (int i = j->num_members; i--;)
        if (json_is_text(j->members[i].key, j->members[i].key_len, key)) return &j->members[i];
    return NULL;
}
