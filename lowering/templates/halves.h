// Rows of IEEE's 16 bits, by the processor's own conversions where it has them: GCC has none in its vector loops. n elements each.
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

template <typename From, typename To, typename Source, typename Target, typename Convert>
INLINE void half_row(const Source *x, Target *made, int64_t n, Convert convert) {
  int64_t i = 0;
  From source;
  To target;
  for (; i + HALF_LANES <= n; i += HALF_LANES) {
    __builtin_memcpy(&source, x + i, sizeof(From));
    target = convert(source);
    __builtin_memcpy(made + i, &target, sizeof(To));
  }
  if (i == n) return;
  // what is left by vectors under a mask, not by calls of memcpy
  const int count = (int)(n - i);
  Source rest[HALF_LANES];
  Target out[HALF_LANES];
  const Source *from = x + i;
  Target *to = made + i;
#pragma omp simd
  for (int k = 0; k < HALF_LANES; ++k) rest[k] = k < count ? from[k] : 0;
  __builtin_memcpy(&source, rest, sizeof(From));
  target = convert(source);
  __builtin_memcpy(out, &target, sizeof(To));
#pragma omp simd
  for (int k = 0; k < HALF_LANES; ++k)
    if (k < count) to[k] = out[k];
}
#define HALF_ROW(NAME, SOURCE, TARGET, FROM, TO, LANES, ALONE)                                                 \
  INLINE void NAME(const SOURCE *x, TARGET *made, int64_t n) {                                                 \
    half_row<FROM, TO>(x, made, n, [](FROM lanes) __attribute__((always_inline)) { return LANES(lanes); }); \
  }
#else
#define HALF_ROW(NAME, SOURCE, TARGET, FROM, TO, LANES, ALONE)    \
  INLINE void NAME(const SOURCE *x, TARGET *made, int64_t n) {    \
    _Pragma("omp simd") for (int64_t i = 0; i < n; ++i) made[i] = ALONE(x[i]); \
  }
#endif
HALF_ROW(row_from_fp16, fp16, float, HalfNarrow, HalfWide, half_widened, from_fp16)
HALF_ROW(row_to_fp16, float, fp16, HalfWide, HalfNarrow, half_narrowed, to_fp16)
HALF_ROW(row_round_fp16, float, float, HalfWide, HalfWide, half_rounded, round_fp16)
