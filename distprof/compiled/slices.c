/* Slices: which ones overlap without nesting, and which one is the innermost at a time.
 *
 * They come in parts, in the order of a sweep: by thread, start, and longest first. Between parts only those are kept that
 * have not ended, so that memory is that of a part, however many there are. */

/* Durations of rows that are no slices but ask for the lane of one: that around the time, or that which begins next. */
enum { AROUND = -1, FOLLOWING = -2 };

typedef struct {
    int64_t start, end;
    int64_t whole; /* where it ends uncut */
    int64_t place; /* rows before it, of all parts */
    int64_t row;
} Open;

/* What is found about a row of an earlier part: its lane, or what is left of it; -1 for the other. */
typedef struct {
    int64_t row, lane, cut;
} Late;

typedef struct {
    int64_t place, row;
} Waiting;

typedef struct {
    int64_t tolerance, place;
    int32_t max_lanes, thread;
    Open **open; /* of each lane, the innermost last */
    int64_t *depth, *room;
    Waiting *waiting; /* for the slice that follows */
    int64_t num_waiting, room_waiting;
    Late *late;
    int64_t num_late, room_late;
} Lanes;

void lanes_free(Lanes *l) {
    for (int32_t i = 0; l->open && i < l->max_lanes; i++) free(l->open[i]);
    free(l->open), free(l->depth), free(l->room), free(l->waiting), free(l->late), free(l);
}

/* Lanes of a thread, itself included, are `max_lanes` at most. NULL without memory. */
Lanes *lanes_new(int64_t tolerance, int32_t max_lanes) {
    Lanes *l = calloc(1, sizeof *l);
    if (!l) return NULL;
    l->tolerance = tolerance, l->max_lanes = max_lanes;
    l->open = calloc(max_lanes, sizeof *l->open);
    l->depth = calloc(max_lanes, sizeof *l->depth);
    l->room = calloc(max_lanes, sizeof *l->room);
    if (l->open && l->depth && l->room) return l;
    return lanes_free(l), NULL;
}

int64_t lanes_num_late(const Lanes *l) { return l->num_late; }
const Late *lanes_late(const Lanes *l) { return l->late; }

/* The array with room for one more than `count` elements; NULL without memory, and it stays as it was. */
static void *with_room(void *array, int64_t count, int64_t *room, size_t size) {
    if (count < *room) return array;
    int64_t more = *room ? 2 * *room : 64;
    array = realloc(array, more * size);
    if (array) *room = more;
    return array;
}

static int add_late(Lanes *l, Late late) {
    Late *array = with_room(l->late, l->num_late, &l->room_late, sizeof *array);
    if (!array) return 0;
    l->late = array, array[l->num_late++] = late;
    return 1;
}

static int wait_for_next(Lanes *l, Waiting one) {
    Waiting *array = with_room(l->waiting, l->num_waiting, &l->room_waiting, sizeof *array);
    if (!array) return 0;
    l->waiting = array, array[l->num_waiting++] = one;
    return 1;
}

/* The lane of the last slice that has begun and not ended before this time; -1 without one. */
static int32_t lane_at(Lanes *l, int64_t at) {
    int32_t found = -1;
    int64_t latest = -1;
    for (int32_t i = 0; i < l->max_lanes; i++) {
        Open *open = l->open[i];
        while (l->depth[i] && open[l->depth[i] - 1].end < at) l->depth[i]--;
        if (l->depth[i] && open[l->depth[i] - 1].place > latest) latest = open[l->depth[i] - 1].place, found = i;
    }
    return found;
}

/* How many slices stay open if those that one from `from` to `to` sticks out of end where it begins; -1 where one of them
 * would lose more than `most`, or all. */
static int64_t outer_of(const Open *open, int64_t depth, int64_t from, int64_t to, int64_t most) {
    for (; depth && open[depth - 1].end < to; depth--)
        if (open[depth - 1].start == from || open[depth - 1].whole - from > most) return -1;
    return depth;
}

/* Puts a slice into the first lane that takes it. Where it sticks out by no more than the tolerance, the less of two parts
 * that are in each other's way goes: its end, or the ends of those that it sticks out of. 0 without memory. */
static int place_slice(Lanes *l, Open one, int64_t first, int32_t *lanes, int64_t *cuts) {
    int64_t from = one.start;
    int32_t i = 0;
    for (;; i++) {
        Open *open = l->open[i];
        while (l->depth[i] && open[l->depth[i] - 1].end <= from) l->depth[i]--;
        int64_t depth = l->depth[i], end = depth ? open[depth - 1].end : INT64_MAX;
        if (one.end <= end) break;
        int64_t sticks_out = one.end - end, most = l->tolerance < sticks_out ? l->tolerance : sticks_out - 1;
        int64_t outer = i ? -1 : outer_of(open, depth, from, one.end, most);
        if (outer >= 0) {
            while (l->depth[i] > outer) {
                Open *other = &open[--l->depth[i]];
                if (other->place >= first) cuts[other->place - first] = from - other->start;
                else if (!add_late(l, (Late){other->row, -1, from - other->start})) return 0;
            }
            break;
        }
        if ((i == 0 && sticks_out <= l->tolerance) || i + 1 == l->max_lanes) { /* without a free lane what is seen is cut */
            cuts[one.place - first] = end - from, one.end = end;
            break;
        }
    }
    Open *open = with_room(l->open[i], l->depth[i], &l->room[i], sizeof *open);
    if (!open) return 0;
    l->open[i] = open, open[l->depth[i]++] = one;
    lanes[one.place - first] = i;
    for (; l->num_waiting; l->num_waiting--) {
        Waiting *asks = &l->waiting[l->num_waiting - 1];
        if (asks->place >= first) lanes[asks->place - first] = i;
        else if (!add_late(l, (Late){asks->row, i, -1})) return 0;
    }
    return 1;
}

/* Takes in the next part. lanes[i] becomes the lane of a slice, or that of the slice it asks for, -1 without one; cuts[i]
 * what is left of a slice where some has to go, else -1. Returns 0 without memory. */
int32_t lanes_add(Lanes *l, int64_t n, const int64_t *row, const int32_t *thread, const int64_t *start, const int64_t *duration,
                  int32_t *lanes, int64_t *cuts) {
    int64_t first = l->place;
    l->num_late = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t place = l->place++;
        if (thread[i] != l->thread) {
            l->thread = thread[i], l->num_waiting = 0;
            memset(l->depth, 0, l->max_lanes * sizeof *l->depth);
        }
        lanes[i] = cuts[i] = -1;
        if (duration[i] >= 0) {
            int64_t end = start[i] + duration[i];
            if (!place_slice(l, (Open){start[i], end, end, place, row[i]}, first, lanes, cuts)) return 0;
        } else if (duration[i] == AROUND) {
            lanes[i] = lane_at(l, start[i]);
        } else if (!wait_for_next(l, (Waiting){place, row[i]})) {
            return 0;
        }
    }
    return 1;
}
