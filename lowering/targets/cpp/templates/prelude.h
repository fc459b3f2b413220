typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short bf16;
typedef unsigned short fp16;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT64_TYPE__ uint64_t;
#if defined(__AVX512F__)
#define WHOLE_VECTORS(n) (((n) + 15) / 16 * 16)  // vectors under a mask are as fast as others
#else
#define WHOLE_VECTORS(n) (n)
#endif
#define INLINE static inline __attribute__((always_inline))

extern "C" {
__attribute__((weak, visibility("default"))) int32_t known_at_run_time = 0;
}

INLINE float from_bf16(bf16 x) {
  uint32_t bits = (uint32_t)x << 16;
  float made;
  __builtin_memcpy(&made, &bits, 4);
  return made;
}

// Round to nearest even; every NaN becomes 0x7fc0, as in c10.
INLINE bf16 to_bf16(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return (bf16)(x != x ? 0x7fc0u : rounded);
}

// The same where a NaN can have no low bits, which would carry into the sign: one made by arithmetic, or of a bf16. It stays a NaN.
INLINE bf16 to_bf16_short(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  return (bf16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// from_bf16(to_bf16(x)) without leaving 32 bits.
INLINE float round_bf16(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  bits = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
  bits = x != x ? 0x7fc00000u : bits;
  float made;
  __builtin_memcpy(&made, &bits, 4);
  return made;
}

INLINE float round_bf16_short(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  bits = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
  float made;
  __builtin_memcpy(&made, &bits, 4);
  return made;
}

// IEEE's 16 bits, in operations that GCC vectorises, as it does not _Float16's conversions. No step has a float that is denormal.
INLINE float from_fp16(fp16 x) {
  const uint32_t rest = x & 0x7fffu, wide = (rest << 13) + ((rest < 0x7c00u ? 112u : 224u) << 23);
  const float small = (float)(int32_t)rest * 0x1p-24f;
  uint32_t bits;
  __builtin_memcpy(&bits, &small, 4);
  bits = (rest < 0x400u ? bits : wide) | ((uint32_t)(x & 0x8000u) << 16);
  float made;
  __builtin_memcpy(&made, &bits, 4);
  return made;
}

// Round to nearest even: what lies below 2^-14 by the last place of a float from 0.5 on, which is 2^-24.
INLINE fp16 to_fp16(float x) {
  uint32_t bits, small;
  __builtin_memcpy(&bits, &x, 4);
  const uint32_t rest = bits & 0x7fffffffu;
  const float above = __builtin_fabsf(x) + 0.5f;
  __builtin_memcpy(&small, &above, 4);
  const uint32_t normal = (rest + 0xfffu + ((rest >> 13) & 1u) - (112u << 23)) >> 13;
  const uint32_t large = rest > 0x7f800000u ? 0x7e00u : 0x7c00u;
  const uint32_t made = rest < 0x38800000u ? small - 0x3f000000u : rest < 0x47800000u ? normal : large;
  return (fp16)(made | ((bits >> 16) & 0x8000u));
}

// from_fp16(to_fp16(x)) without leaving 32 bits.
INLINE float round_fp16(float x) {
  uint32_t bits, small;
  __builtin_memcpy(&bits, &x, 4);
  const uint32_t rest = bits & 0x7fffffffu, rounded = (rest + 0xfffu + ((rest >> 13) & 1u)) & ~0x1fffu;
  const float low = (__builtin_fabsf(x) + 0.5f) - 0.5f;
  __builtin_memcpy(&small, &low, 4);
  const uint32_t large = rest > 0x7f800000u ? 0x7fc00000u : 0x7f800000u;
  const uint32_t whole = rounded < 0x47800000u ? rounded : large;
  bits = (bits & 0x80000000u) | (rest < 0x38800000u ? small : whole);
  float made;
  __builtin_memcpy(&made, &bits, 4);
  return made;
}

INLINE bool op_signbit(float x) {
  int32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  return bits < 0;
}
INLINE float op_tf32(float x) {
  int32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  bits = (bits + 0x1000) & ~0x1fff;
  float rounded;
  __builtin_memcpy(&rounded, &bits, 4);
  return x == x ? rounded : x;
}
INLINE bool op_signbit(double x) {
  int64_t bits;
  __builtin_memcpy(&bits, &x, 8);
  return bits < 0;
}

// -x, of which the compiler does not know that it has the cosine of x: GCC makes one call of a sine and a cosine of one number, which it
// has no vectors of.
INLINE float op_turned(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  bits ^= 0x80000000u;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}
INLINE double op_turned(double x) {
  uint64_t bits;
  __builtin_memcpy(&bits, &x, 8);
  bits ^= (uint64_t)1 << 63;
  __builtin_memcpy(&x, &bits, 8);
  return x;
}

// p times 2 to the power that the low bits of `shifted` (a whole number above 1.5 * 2^23) hold.
INLINE float op_scaled(float p, float shifted, bool vanishes) {
  int32_t exponent;
  __builtin_memcpy(&exponent, &shifted, 4);
  exponent = vanishes ? 0 : exponent - 0x4b400000;
  int32_t half = exponent >> 1;  // two factors: one alone would overflow or lose a denormal
  int32_t first_bits = (half + 127) << 23, second_bits = (exponent - half + 127) << 23;
  float first, second;
  __builtin_memcpy(&first, &first_bits, 4);
  __builtin_memcpy(&second, &second_bits, 4);
  return vanishes ? 0.0f : p * first * second;
}

// c[0] * x^(n - 1) + … + c[n - 1]
template <int n> INLINE float horner(const float (&c)[n], float x) {
  float made = c[0];
#pragma GCC unroll 16
  for (int k = 1; k < n; ++k) made = __builtin_fmaf(made, x, c[k]);
  return made;
}

INLINE float float_of(uint32_t bits) {
  float made;
  __builtin_memcpy(&made, &bits, 4);
  return made;
}
INLINE uint32_t bits_of(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  return bits;
}

// times * exp(x - n * log(2)) in float, x up to log(2) / 2 from n * log(2): of the polynomials 1 + r + … + c r^6 that of the least relative error (3.3e-9).
template <int times = 1> INLINE float op_exp_rest(float x, float n) {
  const float c[] = {times * 0x1.6a1a72p-10f, times * 0x1.123fc6p-7f, times * 0x1.555916p-5f, times * 0x1.55548ap-3f,
                     times * 0x1.fffffcp-2f,  times,                  times};
  return horner(c, __builtin_fmaf(n, 2.12194440e-4f, __builtin_fmaf(n, -0.693359375f, x)));
}

// exp in float by range reduction and a polynomial, within 1 ulp, denormal results included. The library's vector exp takes a slow path for
// what underflows, and a masked softmax is half -inf.
INLINE float op_exp(float x) {
  bool vanishes = x < -103.98f;  // below half of the smallest denormal: no arithmetic on denormals, which is slow, for the many -inf
  float bounded = x > 89.0f ? 89.0f : x;  // NaN stays
  float shifted = __builtin_fmaf(bounded, 1.44269504088896341f, 0x1.8p23f);  // its low bits are the rounded quotient
  return op_scaled(op_exp_rest(bounded, shifted - 0x1.8p23f), shifted, vanishes);
}

// exp of numbers that are not positive, for use beside 1, where what is less than exp(-80) is nothing: one factor, no denormals.
INLINE float op_exp_small(float x) {
  const float bounded = x < -80.0f ? -80.0f : x, bias = 0x1.8p23f + 127.0f;  // NaN stays
  const float shifted = __builtin_fmaf(bounded, 1.44269504088896341f, bias);  // its low bits are the factor's exponent
  return op_exp_rest(bounded, shifted - bias) * float_of(bits_of(shifted) << 23);
}

// erf in float within 1 ulp or so: 1 - exp(p(|x|)) for large |x|, an odd polynomial for small (coefficients of N. Juffa,
// https://stackoverflow.com/questions/35148198). The library's reads tables, which is slow in vectors, and saves all registers.
INLINE float op_erf(float x) {
  float t = __builtin_fabsf(x), s = x * x;
  float r = __builtin_fmaf(-0x1.220000p-16f, t, 0x1.91cfb2p-12f);
  float u = __builtin_fmaf(-0x1.fd1438p-9f, t, 0x1.8d6342p-6f);
  r = __builtin_fmaf(r, s, u);
  r = __builtin_fmaf(r, t, -0x1.b55cb8p-4f);
  r = __builtin_fmaf(r, t, -0x1.450aa0p-1f);
  r = __builtin_fmaf(r, t, -0x1.079d0cp-3f);
  r = __builtin_fmaf(r, t, -t);
  float large = __builtin_copysignf(1.0f - op_exp_small(r), x);
  float p = -0x1.38e000p-11f;
  p = __builtin_fmaf(p, s, 0x1.471a58p-8f);
  p = __builtin_fmaf(p, s, -0x1.b691b2p-6f);
  p = __builtin_fmaf(p, s, 0x1.ce1c44p-4f);
  p = __builtin_fmaf(p, s, -0x1.812700p-2f);
  p = __builtin_fmaf(p, s, 0x1.06eba8p-3f);
  p = __builtin_fmaf(p, x, x);
  return t > 0.927734375f ? large : p;
}

// 1 + erf(x) in float, without cancellation below 0: erfc(|x|) is a power of a polynomial (fitted by weighted least squares up to |x| = `end`)
// with a zero there; within 2.6e-7. The short form, within 7e-7, is for what is rounded to 16 bits next.
INLINE float op_one_plus_erf(float x) {
  const float c[] = {-0x1.171bb8p-19f, 0x1.34c760p-15f, -0x1.0b121cp-12f, 0x1.a029b0p-11f, -0x1.6159d6p-11f, -0x1.74c5b8p-10f,
                     -0x1.404384p-10f, 0x1.b13d60p-7f,  0x1.3dced0p-7f,   -0x1.e6d0d0p-5f, -0x1.41bad2p-4f,  0x1p-2f};
  const float end = 4.0f, t = __builtin_fabsf(x), bounded = end < t ? end : t;  // NaN stays
  const float root = horner(c, bounded) * (end - bounded), rest = root * root;
  return x > 0 ? 2.0f - rest : rest;
}
INLINE float op_one_plus_erf_short(float x) {
  const float c[] = {0x1.0b07b8p-14f, -0x1.1150b0p-11f, 0x1.a58592p-11f, 0x1.cbf166p-9f,
                     -0x1.09a2ccp-8f, -0x1.04f6d0p-5f,  -0x1.06e50ep-7f, 0x1p-2f};
  const float end = 4.0f, t = __builtin_fabsf(x), bounded = end < t ? end : t;
  const float root = horner(c, bounded) * (end - bounded), square = root * root, rest = square * square;
  return x > 0 ? 2.0f - rest : rest;
}

// 2 to the power of x, within 1 ulp; of whole numbers it is exact.
INLINE float op_exp2(float x) {
  bool vanishes = x < -150.0f;
  float bounded = x > 129.0f ? 129.0f : x;  // NaN stays
  float shifted = bounded + 0x1.8p23f;
  const float c[] = {0x1.41fbbcp-13f, 0x1.5f3e52p-10f, 0x1.3b2d4cp-7f, 0x1.c6aee8p-5f, 0x1.ebfbdcp-3f, 0x1.62e430p-1f, 1.0f};
  return op_scaled(horner(c, bounded - (shifted - 0x1.8p23f)), shifted, vanishes);
}

// 1 / (1 + exp(-x)) in float. What of exp(-x) is nothing beside 1 is not computed; what is more than 2^128 becomes infinite: the exponent
// stays there, and the polynomial, of positive coefficients, grows. Those are doubled, since a factor 2^128 is none. The short form, within
// 3e-7 of its value, is for what is rounded to 16 bits next.
struct Odds {
  float bounded, factor, n;
};
INLINE Odds op_odds(float x) {
  const float bounded = x > 80.0f ? 80.0f : x, bias = 0x1.8p23f + 126.0f;  // NaN stays
  const float shifted = __builtin_fmaf(bounded, -1.44269504088896341f, bias);
  int32_t bits;
  __builtin_memcpy(&bits, &shifted, 4);
  bits = bits < 0x4b400000 + 126 + 128 ? bits : 0x4b400000 + 126 + 128;
  return {bounded, float_of((uint32_t)bits << 23), float_of((uint32_t)bits) - bias};
}
INLINE float op_sigmoid(float x) {
  const Odds odds = op_odds(x);
  return 1 / (1 + op_exp_rest<2>(-odds.bounded, odds.n) * odds.factor);
}
INLINE float op_sigmoid_short(float x) {
  const float c[] = {0x1.5bb0e4p-9f, 0x1.3cf37ep-6f, 0x1.c6b798p-4f, 0x1.ebf9a6p-2f, 0x1.62e428p+0f, 2.0f};
  const Odds odds = op_odds(x);
  return 1 / (1 + horner(c, __builtin_fmaf(odds.bounded, -1.44269504088896341f, -odds.n)) * odds.factor);
}

// A power of two by which x can be multiplied for an inverse that neither overflows nor loses digits.
INLINE float op_scale(float x) {
  const float size = __builtin_fabsf(x);
  return size < 0x1p-100f ? 0x1p30f : size > 0x1p100f ? 0x1p-30f : 1;
}

// A NaN wins. One instruction where b is a literal.
template <typename T> INLINE T op_maximum(T a, T b) {
  const T larger = b > a ? b : a;
  return b != b ? b : larger;
}
template <typename T> INLINE T op_minimum(T a, T b) {
  const T smaller = b < a ? b : a;
  return b != b ? b : smaller;
}
// A sum with what its additions rounded off (Dekker's fast two-sum), which is no number once the sum is infinite or none.
INLINE void op_carry(double &sum, double &low, double part) {
  const double made = sum + part;
  low += part - (made - sum);
  sum = made;
}
INLINE double op_carried(double sum, double low) { return low == low ? sum + low : sum; }
template <typename T> INLINE T op_sign(T x) { return (T)((T)(0 < x) - (T)(x < 0)); }

template <typename T> INLINE T op_floordiv(T a, T b) {
  if (b == (T)-1 && (T)-1 < 0) return (T)(0 - a);
  T quotient = (T)(a / b);
  return (T)(quotient - (T)((a % b != 0) && ((a < 0) != (b < 0))));
}
template <typename T> INLINE T op_truncdiv(T a, T b) {
  if (b == (T)-1 && (T)-1 < 0) return (T)(0 - a);
  return (T)(a / b);
}
template <typename T> INLINE T op_fmod(T a, T b) {
  if (b == (T)-1 && (T)-1 < 0) return 0;
  return (T)(a % b);
}
// Of numbers that are not negative: 32 bits are divided several times faster than 64.
INLINE int64_t op_quotient(int64_t a, int64_t b) {
  return ((a | b) >> 32) == 0 ? (int64_t)((uint32_t)a / (uint32_t)b) : a / b;
}

INLINE int64_t op_rest(int64_t a, int64_t b) {
  return ((a | b) >> 32) == 0 ? (int64_t)((uint32_t)a % (uint32_t)b) : a % b;
}

template <typename T> INLINE T op_remainder(T a, T b) {
  T rest = op_fmod<T>(a, b);
  return (T)(rest != 0 && ((rest < 0) != (b < 0)) ? rest + b : rest);
}
template <typename T> INLINE T op_shl(T a, T b) {
  return b < 0 || b >= (T)(8 * sizeof(T)) ? (T)0 : (T)((uint64_t)a << b);
}
template <typename T> INLINE T op_shr(T a, T b) {
  const T most = (T)(8 * sizeof(T) - ((T)-1 < 0 ? 1 : 0));
  if (b < 0 || b >= (T)(8 * sizeof(T))) return (T)-1 < 0 ? (T)(a >> most) : (T)0;
  return (T)(a >> b);
}

// A position from memory on an axis of n elements: one out of range is noted by the caller, and read at 0.
INLINE bool is_outside(int64_t i, int64_t n) { return (uint64_t)i >= (uint64_t)n; }
INLINE int64_t inside(int64_t i, int64_t n) { return is_outside(i, n) ? 0 : i; }

// from[place] of a small type, of which processors have no gathers: out of the 4 bytes of memory around it, which are in the same page.
template <typename T> INLINE T op_picked(const T *from, int32_t place) {
#if defined(__AVX2__)
  typedef uint32_t __attribute__((may_alias)) Word;
  const uint64_t address = (uint64_t)from, size = sizeof(T);
  const Word *words = (const Word *)(address & ~(uint64_t)3);
  const int32_t bytes = (int32_t)(place * size + (address & 3));
  return (T)(words[bytes >> 2] >> ((bytes & 3) * 8));
#else
  return from[place];
#endif
}

// A random number in [0, 1): Philox-4x32-10, four numbers of each counter.
INLINE float op_uniform(int64_t seed, int64_t stream, int64_t place) {
  uint32_t c[4] = {(uint32_t)(place >> 2), (uint32_t)(place >> 34), (uint32_t)stream, 0};
  uint32_t k[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
  for (int round = 0; round < 10; round++) {
    const uint64_t a = 0xD2511F53ull * c[0], b = 0xCD9E8D57ull * c[2];
    c[0] = (uint32_t)(b >> 32) ^ c[1] ^ k[0];
    c[1] = (uint32_t)b;
    c[2] = (uint32_t)(a >> 32) ^ c[3] ^ k[1];
    c[3] = (uint32_t)a;
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  return (float)(c[place & 3] >> 8) * 5.9604644775390625e-08f;
}
