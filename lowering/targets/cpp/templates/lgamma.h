template <int n> INLINE double horner(const double (&c)[n], double x) {
  double made = c[0];
#pragma GCC unroll 16
  for (int k = 1; k < n; ++k) made = __builtin_fma(made, x, c[k]);
  return made;
}

// log of a positive double that is no denormal, within 1e-13: the exponent, and the series of atanh for a mantissa around 1.
INLINE double lgamma_log(double x) {
  int64_t bits;
  __builtin_memcpy(&bits, &x, 8);
  const int64_t above = bits - 0x3fe6a09e667f3bcd;  // sqrt(1/2)
  const int64_t whole = (above & (int64_t)0xfff0000000000000) + 0x3ff0000000000000;
  const int64_t rest = bits - whole + 0x3ff0000000000000, shown = ((uint64_t)whole >> 52) | 0x4330000000000000;
  double mantissa, exponent;
  __builtin_memcpy(&mantissa, &rest, 8);
  __builtin_memcpy(&exponent, &shown, 8);
  const double s = (mantissa - 1) / (mantissa + 1), square = s * s;
  const double c[] = {0x1.9197f58c3d345p-3, 0x1.c6208fe94df3fp-3, 0x1.24943952b0ba7p-2,
                      0x1.99999628d957fp-2, 0x1.5555555672b87p-1, 0x1.fffffffffff10p+0};
  return __builtin_fma(exponent - (0x1p52 + 1023), 0x1.62e42fefa39efp-1, s * horner(c, square));
}

// log |gamma(x)| in float, computed in double: a polynomial with the zero at 2 for [1.5, 2.5), to which one step leads from [0.5, 3.5); Stirling's
// series beyond, and log pi - log |sin pi x| - log gamma(1 - x) below. All polynomials fitted by weighted least squares, within 1e-12.
INLINE float op_lgamma(float x) {
  const double wide = x;
  const bool low = wide < 0.5;
  const double z = low ? 1 - wide : wide;
  const bool large = z >= 3.5, up = z < 1.5, down = z >= 2.5;
  const double near[] = {-0x1.99c1dc4000000p-17, 0x1.9a7d612000000p-16, -0x1.6e10cbd800000p-15, 0x1.9bce994dc0000p-14, -0x1.d4962a5538000p-13,
                         0x1.0b509cc7e5800p-11,  -0x1.38aa3a98d3600p-10, 0x1.7adcf5a3705a0p-9,  -0x1.e4050354813e2p-8, 0x1.51322b401b7cdp-6,
                         -0x1.13e001a30ec70p-4,  0x1.4a34cc4a5005ap-2,  0x1.b0ee607208c29p-2};
  const double far[] = {0x1.371af6aee88adp-9, -0x1.9d6fdce6d8864p-10, 0x1.b0b8f0d1461b1p-11, -0x1.37d9eb965a6a6p-11,
                        0x1.a019452d2e6e0p-11, -0x1.6c16c13195f04p-9, 0x1.5555555554f62p-4};
  const double place = up ? z - 1 : down ? z - 3 : z - 2, one = 1 / z;
  const double series = __builtin_fma(horner(far, one * one), one, 0x1.d67f1c864beb5p-1 - z);
  const double stepped = up ? z : down ? z - 1 : 1;
  const double factor = large ? z - 0.5 : up ? -1 : 1;
  const double rest = large ? series : place * horner(near, place);
  const double above = __builtin_fma(factor, lgamma_log(large ? z : stepped), rest);

  const double turn = wide - __builtin_rint(wide);
  const double sine[] = {0x1.d4ec0b4000000p-12, -0x1.e297ccaf80000p-8, 0x1.5076fe9776000p-4, -0x1.32d2c96c5f9c0p-1,
                         0x1.466bc66dc8868p+1, -0x1.4abbce6247f22p+2, 0x1.921fb54442b61p+1};
  const double height = __builtin_fabs(turn) * horner(sine, turn * turn);
  const double below = turn == 0 ? __builtin_inf() : 0x1.250d048e7a1bdp+0 - lgamma_log(height) - above;
  const float made = (float)(low ? below : above);
  return x - x == 0 ? made : __builtin_fabsf(x);  // NaN and infinities
}
