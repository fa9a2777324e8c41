/* Numbers: texts of times and ids as 64-bit integers, exactly. */

/* Appends a decimal digit; 0 where the value would be LATEST or more. */
static int add_digit(int64_t *value, int digit) {
    if (*value > LATEST / 10) return 0;
    *value = 10 * *value + digit;
    return *value < LATEST;
}

/* Microseconds, in any notation and quoted or not -> exact nanoseconds, what is less left out. 0 where it is no number,
 * or LATEST or more. */
static int nanoseconds(const uint8_t *p, int64_t n, int64_t *ns) {
    if (n >= 2 && *p == '"' && p[n - 1] == '"') p++, n -= 2;
    const uint8_t *end = p + n;
    int negative = p < end && *p == '-';
    p += negative;
    const uint8_t *whole = p, *fraction = p = digits(p, end);
    int64_t before = p - whole, behind = 0;
    if (p < end && *p == '.') fraction = ++p, p = digits(p, end), behind = p - fraction;
    if (!(before + behind)) return 0;
    int64_t exponent = 0;
    if (p < end && (*p | 32) == 'e') {
        p++;
        int minus = p < end && *p == '-';
        p += minus || (p < end && *p == '+');
        if (p == end) return 0;
        for (; p < end && *p >= '0' && *p <= '9'; p++)
            if (exponent < INT64_C(1) << 40) exponent = exponent * 10 + (*p - '0');
        if (minus) exponent = -exponent;
    }
    if (p != end) return 0;
    int64_t value = 0, left = before + exponent + 3; /* so many digits make whole nanoseconds */
    for (p = whole; before && left > 0; before--, left--)
        if (!add_digit(&value, *p++ - '0')) return 0;
    for (p = fraction; behind && left > 0; behind--, left--)
        if (!add_digit(&value, *p++ - '0')) return 0;
    for (; value && left > 0; left--)
        if (!add_digit(&value, 0)) return 0;
    *ns = negative ? -value : value;
    return 1;
}

/* An integer, quoted or not; NONE where it is none, or no 64 bits hold it. */
static int64_t integer(const uint8_t *p, int64_t n) {
    if (n >= 2 && *p == '"' && p[n - 1] == '"') p++, n -= 2;
    int negative = n && *p == '-';
    p += negative, n -= negative;
    if (n < 1) return NONE;
    int64_t value = 0;
    for (int64_t i = 0; i < n; i++) {
        int digit = p[i] - '0';
        if (digit < 0 || digit > 9 || value > (INT64_MAX - digit) / 10) return NONE;
        value = value * 10 + digit;
    }
    return negative ? -value : value;
}

/* The digits that p begins with, at most eight, at once: returns how many, and sets *value.
 *
 * `odd` has a bit in each byte that is no digit: digits are 0x30 to 0x39, so their high half is 3, and still is after 6 is
 * added. Then neighbours are joined: bytes to numbers below 100, these to numbers below 10^4, and these to one below 10^8. */
static int some_digits(const uint8_t *p, int64_t *value) {
    uint64_t word = load(p);
    uint64_t odd = ((word & EACH(0xF0)) | ((word + EACH(6)) & EACH(0xF0)) >> 4) ^ EACH(0x33); /* right up to the first one */
    int count = odd ? __builtin_ctzll(odd) >> 3 : 8;
    if (!count) return 0;
    word = (word << (64 - 8 * count) & EACH(0x0F)) * (10 << 8 | 1) >> 8 & UINT64_C(0x00FF00FF00FF00FF);
    word = word * (100 << 16 | 1) >> 16 & UINT64_C(0x0000FFFF0000FFFF);
    *value = (int64_t)(word * (UINT64_C(10000) << 32 | 1) >> 32);
    return count;
}

/* Behind a number of at most 15 digits before the point and 3 behind it, which must be there in full if any is; its
 * thousandfold goes to *value. NULL where it takes a closer look. */
static const uint8_t *usual_number(const uint8_t *p, const uint8_t *end, int64_t *value) {
    if (end - p < 32) return NULL;
    static const int64_t tens[] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000};
    int64_t number, more;
    int count = some_digits(p, &number);
    if (!count || (*p == '0' && count > 1)) return NULL;
    p += count;
    if (count == 8 && (count = some_digits(p, &more))) {
        if (count == 8) return NULL;
        number = number * tens[count] + more, p += count;
    }
    number *= 1000;
    if (*p == '.') {
        int a = p[1] - '0', b = p[2] - '0', c = p[3] - '0';
        if (a < 0 || a > 9 || b < 0 || b > 9 || c < 0 || c > 9) return NULL;
        number += 100 * a + 10 * b + c, p += 4;
    }
    if (IN_SCALAR[*p]) return NULL;
    *value = number;
    return p;
}
