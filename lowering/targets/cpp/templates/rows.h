// Folds of n neighbouring elements in vector registers, one wide accumulator a lane: what stands in a loop with a reduction clause is
// folded lane by lane at its end, in order for sums, and with extrema that propagate NaN as scalars.
template <typename T> struct Row {
  typedef T Wide __attribute__((vector_size(64)));
  typedef T Half __attribute__((vector_size(32)));
  typedef T Quarter __attribute__((vector_size(16)));
  static const int lanes = 64 / sizeof(T);

  INLINE Wide at(const T *p) {
    Wide made;
    __builtin_memcpy(&made, p, 64);
    return made;
  }
  // The last few elements, then `rest` in the lanes that are left. room: there is memory for all of a vector, which was just written as
  // one: read under a mask, it would be waited for.
  INLINE Wide tail(const T *p, int64_t count, T rest, bool room) {
    if (room && WHOLE_VECTORS(1) > 1) {
      typedef __typeof__((Wide){} < (Wide){}) Places;
      Places places;
      for (int i = 0; i < lanes; ++i) places[i] = i;
      return places < (__typeof__(places[0]))count - (Places){} ? at(p) : rest - (Wide){};
    }
    if (__builtin_constant_p(count) && count == 1) {  // which would be stored alone, and waited for
      Wide made = rest - (Wide){};
      made[0] = *p;
      return made;
    }
    T made[lanes];
#pragma omp simd
    for (int i = 0; i < lanes; ++i) made[i] = i < (int)count ? p[i] : rest;
    return at(made);
  }
  template <typename Part, typename Whole> INLINE Part part(const Whole &whole, int number) {
    Part made;
    __builtin_memcpy(&made, (const char *)&whole + number * sizeof(Part), sizeof(Part));
    return made;
  }
  template <typename Fold> INLINE T across(Wide wide) {
    Half half = Fold::of(part<Half>(wide, 0), part<Half>(wide, 1));
    Quarter quarter = Fold::of(part<Quarter>(half, 0), part<Quarter>(half, 1));
    if (lanes == 8) return Fold::of(quarter[0], quarter[1]);
    return Fold::of(Fold::of(quarter[0], quarter[1]), Fold::of(quarter[lanes / 4 - 2], quarter[lanes / 4 - 1]));
  }
  template <typename Fold> INLINE Wide over(const T *p, int64_t n, T start, bool room) {
    Wide a = start - (Wide){}, b = a, c = a, d = a;
    int64_t i = 0;
    for (; i + 4 * lanes <= n; i += 4 * lanes) {
      a = Fold::of(at(p + i), a);
      b = Fold::of(at(p + i + lanes), b);
      c = Fold::of(at(p + i + 2 * lanes), c);
      d = Fold::of(at(p + i + 3 * lanes), d);
    }
    for (; i + lanes <= n; i += lanes) a = Fold::of(at(p + i), a);
    if (i < n) b = Fold::of(tail(p + i, n - i, start, room), b);
    return Fold::of(Fold::of(a, b), Fold::of(c, d));
  }
};

struct Added {
  template <typename V> INLINE V of(V a, V b) { return a + b; }
};
struct Multiplied {
  template <typename V> INLINE V of(V a, V b) { return a * b; }
};
// Without NaN: a comparison with one is false, and the other side stays.
struct Larger {
  template <typename V> INLINE V of(V a, V b) { return a > b ? a : b; }
};
struct Smaller {
  template <typename V> INLINE V of(V a, V b) { return a < b ? a : b; }
};
// Zero as long as nothing was NaN.
struct Unordered {
  template <typename V> INLINE V of(V a, V b) { return a == a ? b : a; }
};

const int64_t kRowBlock = 2048;  // elements summed in T, in 64 parts, before they go to a double

template <typename T> INLINE double op_row_sum(const T *p, int64_t n, bool room = false) {
  double total = 0;
  for (int64_t i = 0; i < n; i += kRowBlock)
    total += Row<T>::template across<Added>(
        Row<T>::template over<Added>(p + i, n - i < kRowBlock ? n - i : kRowBlock, 0, room));
  return total;
}
template <typename T> INLINE T op_row_prod(const T *p, int64_t n, bool room = false) {
  return Row<T>::template across<Multiplied>(Row<T>::template over<Multiplied>(p, n, 1, room));
}
template <typename T> INLINE T op_row_nan(const T *p, int64_t n, bool room) {
  return Row<T>::template across<Added>(Row<T>::template over<Unordered>(p, n, 0, room));
}
template <typename T> INLINE T op_row_max(const T *p, int64_t n, bool room = false) {
  T nan = op_row_nan(p, n, room);
  T most = Row<T>::template across<Larger>(Row<T>::template over<Larger>(p, n, (T)-__builtin_inf(), room));
  return nan != nan ? nan : most;
}
template <typename T> INLINE T op_row_min(const T *p, int64_t n, bool room = false) {
  T nan = op_row_nan(p, n, room);
  T least = Row<T>::template across<Smaller>(Row<T>::template over<Smaller>(p, n, (T)__builtin_inf(), room));
  return nan != nan ? nan : least;
}

// The first of n elements that equals `wanted`, or that is NaN if it is; there is one.
template <typename T> INLINE int64_t op_row_find(const T *p, int64_t n, T wanted) {
  const bool nan = wanted != wanted;
  for (int64_t i = 0;; i += 64) {
    const int64_t m = n - i < 64 ? n - i : 64;
    int32_t first = 64;
#pragma omp simd reduction(min : first)
    for (int32_t k = 0; k < (int32_t)m; ++k) {
      const int32_t here = (p[i + k] == wanted) | (nan & (p[i + k] != p[i + k])) ? k : 64;
      first = here < first ? here : first;
    }
    if (first < 64) return i + first;
    if (m < 64) return 0;
  }
}
// Goes on with the extremum `best` at `at` of what came before: n more elements, the first of which has position `start`.
template <typename T> INLINE void op_row_argmax(const T *p, int64_t n, int64_t start, T &best, int64_t &at) {
  const T most = op_row_max<T>(p, n);
  if (most > best || (most != most && best == best)) {
    best = most;
    at = start + op_row_find<T>(p, n, most);
  }
}
template <typename T> INLINE void op_row_argmin(const T *p, int64_t n, int64_t start, T &best, int64_t &at) {
  const T least = op_row_min<T>(p, n);
  if (least < best || (least != least && best == best)) {
    best = least;
    at = start + op_row_find<T>(p, n, least);
  }
}

// An array for a row whose length only a call knows: on the stack unless it is long.
template <typename T> struct Kept {
  T here[2048];
  T *data;

  explicit Kept(int64_t n) : data(n <= 2048 ? here : (T *)__builtin_malloc(n * sizeof(T))) {
    if (data == nullptr) __builtin_trap();
  }
  ~Kept() {
    if (data != here) __builtin_free(data);
  }
  Kept(const Kept &) = delete;
  Kept &operator=(const Kept &) = delete;
};
