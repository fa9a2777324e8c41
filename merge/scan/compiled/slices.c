/* Slices: which ones overlap without nesting, and which one is the innermost at a time. */

typedef struct {
    int64_t end, row;
} Open;

/* Slices in `order` (by thread, start, longest first) that stick out of the one they begin in. Where it is no more than
 * `tolerance`, the less of two parts that are in each other's way goes: the end of the slice, or the ends of those that it
 * sticks out of; cut_dur[row] is what is left. Else lane[row] > 0 is the side lane that it fits into. Returns how many
 * stick out, or -1 without memory. */
int64_t find_overlaps(int64_t n, const int64_t *order, const int64_t *start, const int64_t *dur, const int32_t *thread,
                      int64_t tolerance, int32_t max_lanes, int32_t *lane, int64_t *cut_dur) {
    int64_t found = 0, room = 64;
    int64_t *depth = calloc(max_lanes, sizeof *depth);
    int64_t *sizes = malloc(max_lanes * sizeof *sizes);
    Open **stack = calloc(max_lanes, sizeof *stack);
    int failed = !depth || !sizes || !stack;
    for (int32_t l = 0; !failed && l < max_lanes; l++) {
        sizes[l] = room, stack[l] = malloc(room * sizeof **stack);
        failed |= !stack[l];
    }
    for (int64_t i = 0; !failed && i < n; i++) {
        int64_t row = order[i], from = start[row], to = from + dur[row];
        if (i && thread[order[i - 1]] != thread[row]) memset(depth, 0, max_lanes * sizeof *depth);
        int32_t l = 0;
        for (;; l++) {
            Open *open = stack[l];
            while (depth[l] && open[depth[l] - 1].end <= from) depth[l]--;
            int64_t end = depth[l] ? open[depth[l] - 1].end : INT64_MAX;
            if (to <= end) break;
            int64_t outer = depth[l], theirs = 0; /* those it sticks out of are from `outer` on */
            for (; outer && open[outer - 1].end < to; outer--) {
                int64_t other = open[outer - 1].row, loss = start[other] + dur[other] - from;
                if (start[other] == from) loss = INT64_MAX; /* nothing would be left */
                if (loss > theirs) theirs = loss;
            }
            if (l == 0 && theirs <= tolerance && theirs < to - end) {
                while (depth[l] > outer) {
                    int64_t other = open[--depth[l]].row;
                    cut_dur[other] = from - start[other];
                }
                found++;
                break;
            }
            if ((l == 0 && to - end <= tolerance) || l + 1 == max_lanes) { /* without a free lane what is seen is cut */
                cut_dur[row] = end - from, to = end, found += !l;
                break;
            }
        }
        if (l) lane[row] = l, found++;
        if (depth[l] == sizes[l]) {
            Open *more = realloc(stack[l], 2 * sizes[l] * sizeof *more);
            if (!more) {
                failed = 1;
                break;
            }
            stack[l] = more, sizes[l] *= 2;
        }
        stack[l][depth[l]++] = (Open){to, row};
    }
    for (int32_t l = 0; stack && l < max_lanes; l++) free(stack[l]);
    free(stack), free(sizes), free(depth);
    return failed ? -1 : found;
}

/* Of each time, which ascend: the number of the last slice that has begun by then and not ended before, -1 without one.
 * Slices by start. Returns 0 without memory. */
int32_t find_innermost(int64_t n, const int64_t *start, const int64_t *end, int64_t m, const int64_t *at, int64_t *found) {
    int64_t depth = 0, room = 64, next = 0, *open = malloc(room * sizeof *open);
    for (int64_t i = 0; open && i < m; i++) {
        for (; next < n && start[next] <= at[i]; next++) {
            while (depth && end[open[depth - 1]] < start[next]) depth--;
            if (depth == room) {
                int64_t *more = realloc(open, 2 * room * sizeof *more);
                if (!more) return free(open), 0;
                open = more, room *= 2;
            }
            open[depth++] = next;
        }
        while (depth && end[open[depth - 1]] < at[i]) depth--;
        found[i] = depth ? open[depth - 1] : -1;
    }
    if (!open) return 0;
    return free(open), 1;
}
