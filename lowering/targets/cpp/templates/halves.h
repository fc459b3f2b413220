// Rows of 16-bit floats, IEEE's by the processor's own conversions where it has them: GCC has none in its vector loops. n elements each;
// whole_x, whole_made: arrays with room for whole vectors.
#if defined(__AVX512F__)
#define HALF_LANES 16
#define HALF_REGISTER "v"
#elif defined(__F16C__)
#define HALF_LANES 8
#define HALF_REGISTER "x"
#endif

#ifdef HALF_LANES
typedef float HalfWide __attribute__((vector_size(4 * HALF_LANES)));
typedef fp16 HalfNarrow __attribute__((vector_size(2 * HALF_LANES)));

INLINE HalfWide half_widened(HalfNarrow x) {
  HalfWide made;
  __asm__("vcvtph2ps %1, %0" : "=" HALF_REGISTER(made) : HALF_REGISTER(x));
  return made;
}
INLINE HalfNarrow half_narrowed(HalfWide x) {
  HalfNarrow made;
  __asm__("vcvtps2ph $0, %1, %0" : "=" HALF_REGISTER(made) : HALF_REGISTER(x));  // to nearest even
  return made;
}
INLINE HalfWide half_rounded(HalfWide x) { return half_widened(half_narrowed(x)); }

typedef uint32_t HalfBits __attribute__((vector_size(4 * HALF_LANES)));
INLINE HalfWide brain_widened(HalfNarrow x) { return (HalfWide)(__builtin_convertvector(x, HalfBits) << 16); }
INLINE HalfNarrow brain_narrowed_short(HalfWide x) {
  const HalfBits bits = (HalfBits)x;
  return __builtin_convertvector((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16, HalfNarrow);
}
INLINE HalfNarrow brain_narrowed(HalfWide x) {
  const HalfBits bits = (HalfBits)x, rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return __builtin_convertvector(x != x ? 0x7fc0u - (HalfBits){} : rounded, HalfNarrow);
}

// What is left by vectors under a mask, not by calls of memcpy; whole: there is room for all of a vector.
template <typename V, typename T> INLINE V half_tail(const T *from, int count, bool whole) {
  V made = {};
  if (!whole && __builtin_constant_p(count) && count == 1) {  // which would be stored alone, and waited for
    made[0] = *from;
    return made;
  }
  T rest[HALF_LANES];
  if (!whole) {
#pragma omp simd
    for (int k = 0; k < HALF_LANES; ++k) rest[k] = k < count ? from[k] : 0;
  }
  __builtin_memcpy(&made, whole ? from : rest, sizeof(V));
  return made;
}
template <typename V, typename T> INLINE void half_tail_stored(T *to, V made, int count, bool whole) {
  if (whole) {
    __builtin_memcpy(to, &made, sizeof(V));
    return;
  }
  T out[HALF_LANES];
  __builtin_memcpy(out, &made, sizeof(V));
#pragma omp simd
  for (int k = 0; k < HALF_LANES; ++k)
    if (k < count) to[k] = out[k];
}

template <typename From, typename To, typename Source, typename Target, typename Convert>
INLINE void half_row(const Source *x, Target *made, int64_t n, bool whole_x, bool whole_made, Convert convert) {
  const bool room = WHOLE_VECTORS(1) > 1;
  int64_t i = 0;
  From source;
  To target;
  for (; i + HALF_LANES <= n; i += HALF_LANES) {
    __builtin_memcpy(&source, x + i, sizeof(From));
    target = convert(source);
    __builtin_memcpy(made + i, &target, sizeof(To));
  }
  const int count = (int)(n - i);
  if (count > 0) {
    const From rest = half_tail<From>(x + i, count, whole_x && room);
    half_tail_stored<To>(made + i, convert(rest), count, whole_made && room);
  }
}
#define HALF_ROW(NAME, SOURCE, TARGET, FROM, TO, LANES, ALONE)                                                  \
  INLINE void NAME(const SOURCE *x, TARGET *made, int64_t n, bool whole_x = false, bool whole_made = false) { \
    half_row<FROM, TO>(x, made, n, whole_x, whole_made,                                                       \
                       [](FROM lanes) __attribute__((always_inline)) { return LANES(lanes); });               \
  }
#else
#define HALF_ROW(NAME, SOURCE, TARGET, FROM, TO, LANES, ALONE)                              \
  INLINE void NAME(const SOURCE *x, TARGET *made, int64_t n, bool = false, bool = false) { \
    _Pragma("omp simd") for (int64_t i = 0; i < n; ++i) made[i] = ALONE(x[i]);             \
  }
#endif
HALF_ROW(row_from_fp16, fp16, float, HalfNarrow, HalfWide, half_widened, from_fp16)
HALF_ROW(row_to_fp16, float, fp16, HalfWide, HalfNarrow, half_narrowed, to_fp16)
HALF_ROW(row_round_fp16, float, float, HalfWide, HalfWide, half_rounded, round_fp16)
HALF_ROW(row_from_bf16, bf16, float, HalfNarrow, HalfWide, brain_widened, from_bf16)
HALF_ROW(row_to_bf16, float, bf16, HalfWide, HalfNarrow, brain_narrowed, to_bf16)
HALF_ROW(row_to_bf16_short, float, bf16, HalfWide, HalfNarrow, brain_narrowed_short, to_bf16_short)
