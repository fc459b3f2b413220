#define FLOAT_DIVISION(T, FMOD, FLOOR, COPYSIGN)                                     \
  template <> inline T op_fmod<T>(T a, T b) { return FMOD(a, b); }                   \
  template <> inline T op_remainder<T>(T a, T b) {                                   \
    T rest = FMOD(a, b);                                                             \
    return rest != 0 && ((b < 0) != (rest < 0)) ? rest + b : rest;                   \
  }                                                                                  \
  template <> inline T op_floordiv<T>(T a, T b) {                                    \
    if (b == 0) return a / b;                                                        \
    T rest = FMOD(a, b), quotient = (a - rest) / b;                                  \
    if (rest != 0 && (b < 0) != (rest < 0)) quotient -= 1;                           \
    if (quotient == 0) return COPYSIGN((T)0, a / b);                                 \
    T whole = FLOOR(quotient);                                                       \
    return quotient - whole > (T)0.5 ? whole + 1 : whole;                            \
  }
