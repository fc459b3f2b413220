// fmod of many lanes, under the names by which GCC's vectoriser calls it. What a division leaves over is a number of
// its type, so a fused step from the quotient is exact while that counts in ones; beyond, each lane is divided alone.
#if defined(__FMA__) && defined(__x86_64__) && !defined(__clang__)
#define LANES_FMOD(T, F, N, NAME, MOST)                                                                     \
  typedef T NAME##_lanes __attribute__((vector_size(N * sizeof(T))));                                       \
  extern "C" __attribute__((weak, visibility("hidden"))) NAME##_lanes NAME(NAME##_lanes a, NAME##_lanes b) { \
    union {                                                                                                 \
      NAME##_lanes lanes;                                                                                   \
      T at[N];                                                                                              \
    } left = {a}, right = {b}, made;                                                                        \
    int32_t rare = 0;                                                                                       \
    for (int i = 0; i < N; ++i) {                                                                           \
      const T x = __builtin_fabs##F(left.at[i]), y = __builtin_fabs##F(right.at[i]);                        \
      const T quotient = __builtin_trunc##F(x / y);                                                         \
      T rest = __builtin_fma##F(-quotient, y, x);                                                           \
      rest = rest < 0 ? rest + y : rest;                                                                    \
      rest = rest >= y ? rest - y : rest;                                                                   \
      rare |= !(quotient < MOST) | !(rest == rest);                                                         \
      made.at[i] = __builtin_copysign##F(rest, left.at[i]);                                                 \
    }                                                                                                       \
    if (__builtin_expect(rare, 0))                                                                          \
      for (int i = 0; i < N; ++i) made.at[i] = alone_fmod##F(left.at[i], right.at[i]);                      \
    return made.lanes;                                                                                      \
  }
extern "C" float alone_fmodf(float, float) noexcept __asm__("fmodf");
extern "C" double alone_fmod(double, double) noexcept __asm__("fmod");
LANES_FMOD(float, f, 4, _ZGVbN4vv_fmodf, 0x1p23f)
LANES_FMOD(float, f, 8, _ZGVcN8vv_fmodf, 0x1p23f)
LANES_FMOD(float, f, 8, _ZGVdN8vv_fmodf, 0x1p23f)
LANES_FMOD(double, , 2, _ZGVbN2vv_fmod, 0x1p52)
LANES_FMOD(double, , 4, _ZGVcN4vv_fmod, 0x1p52)
LANES_FMOD(double, , 4, _ZGVdN4vv_fmod, 0x1p52)
#ifdef __AVX512F__
LANES_FMOD(float, f, 16, _ZGVeN16vv_fmodf, 0x1p23f)
LANES_FMOD(double, , 8, _ZGVeN8vv_fmod, 0x1p52)
#endif
extern "C" __attribute__((simd("notinbranch"), const, nothrow)) float fmodf(float, float) noexcept;
extern "C" __attribute__((simd("notinbranch"), const, nothrow)) double fmod(double, double) noexcept;
#endif

#define FLOAT_DIVISION(T, FMOD, FLOOR, COPYSIGN)                                     \
  template <> inline T op_fmod<T>(T a, T b) { return FMOD(a, b); }                   \
  template <> inline T op_remainder<T>(T a, T b) {                                   \
    T rest = FMOD(a, b);                                                             \
    return rest != 0 && ((b < 0) != (rest < 0)) ? rest + b : rest;                   \
  }                                                                                  \
  template <> inline T op_floordiv<T>(T a, T b) {                                    \
    T rest = FMOD(a, b), quotient = (a - rest) / b;                                  \
    if (rest != 0 && (b < 0) != (rest < 0)) quotient -= 1;                           \
    T whole = FLOOR(quotient);                                                       \
    whole = quotient - whole > (T)0.5 ? whole + 1 : whole;                           \
    whole = quotient == 0 ? COPYSIGN((T)0, a / b) : whole;                           \
    return b == 0 ? a / b : whole;                                                   \
  }
