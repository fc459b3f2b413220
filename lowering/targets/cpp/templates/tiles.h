// Transposition of small blocks in vector registers: log2(n) rounds that interleave row i with row i + n / 2.
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define HAS_SHUFFLE 1
#endif
#endif
#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX2__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif

#ifdef HAS_SHUFFLE
template <int n> struct Zip;
template <> struct Zip<2> {
  template <typename V> INLINE V low(V a, V b) { return __builtin_shufflevector(a, b, 0, 2); }
  template <typename V> INLINE V high(V a, V b) { return __builtin_shufflevector(a, b, 1, 3); }
};
template <> struct Zip<4> {
  template <typename V> INLINE V low(V a, V b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
  template <typename V> INLINE V high(V a, V b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }
};
template <> struct Zip<8> {
  template <typename V> INLINE V low(V a, V b) { return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
  template <typename V> INLINE V high(V a, V b) { return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15); }
};
template <> struct Zip<16> {
  template <typename V> INLINE V low(V a, V b) {
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  }
  template <typename V> INLINE V high(V a, V b) {
    return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  }
};

// A block of n x n, n at most 16.
template <typename T, int n> struct Block {
  typedef T V __attribute__((vector_size(n * sizeof(T))));

  INLINE void zip(V *into, const V *from) {
#pragma GCC unroll 8
    for (int i = 0; i < n / 2; ++i) {
      into[2 * i] = Zip<n>::low(from[i], from[i + n / 2]);
      into[2 * i + 1] = Zip<n>::high(from[i], from[i + n / 2]);
    }
  }
  // ahead: elements to the block that follows, whose rows are far from each other in memory.
  template <bool far = true>
  INLINE void transpose(T *to, int64_t to_step, const T *from, int64_t from_step, int64_t ahead) {
    V a[n], b[n];
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) {
      __builtin_memcpy(&a[i], from + i * from_step, sizeof(V));
      if (far) __builtin_prefetch(from + i * from_step + ahead);
    }
    zip(b, a);
    if (n > 2) zip(a, b);
    if (n > 4) zip(b, a);
    if (n > 8) zip(a, b);
    const bool in_a = n == 4 || n == 16;
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) __builtin_memcpy(to + i * to_step, in_a ? &a[i] : &b[i], sizeof(V));
  }
};
#endif

// to[c * to_step + r] = from[r * from_step + c]
template <typename T>
INLINE void op_transpose_ends(T *__restrict__ to, int64_t to_step, const T *__restrict__ from, int64_t from_step,
                              int64_t rows, int64_t columns, int64_t first_row, int64_t first_column) {
  for (int64_t c = first_column; c < columns; ++c)
    for (int64_t r = first_row; r < rows; ++r) to[c * to_step + r] = from[r * from_step + c];
}

#ifdef HAS_SHUFFLE
// By blocks, of which the last ones go over elements that others have done, if more than a few are left.
template <int n, typename T>
INLINE void op_transpose_by(T *__restrict__ to, int64_t to_step, const T *__restrict__ from, int64_t from_step,
                            int64_t rows, int64_t columns) {
  const int few = (n + 4) / 8;
  const int64_t whole_rows = rows % n > few ? rows : rows / n * n;
  const int64_t whole_columns = columns % n > few ? columns : columns / n * n;
  for (int64_t row = 0; row < whole_rows; row += n) {
    const int64_t r = row + n <= rows ? row : rows - n;
    const int64_t ahead = r + 2 * n <= rows ? n * from_step : columns;  // below, or at last to the right
    for (int64_t column = 0; column < whole_columns; column += n) {
      const int64_t c = column + n <= columns ? column : columns - n;
      Block<T, n>::transpose(to + c * to_step + r, to_step, from + r * from_step + c, from_step, ahead);
    }
  }
  op_transpose_ends(to, to_step, from, from_step, whole_rows, columns, 0, whole_columns);
  op_transpose_ends(to, to_step, from, from_step, rows, columns, whole_rows, 0);
}
#endif

// Of a number of rows and columns that are multiples of every block's.
template <typename T, int rows, int columns, bool far = false>
INLINE void op_transpose_tile(T *__restrict__ to, int64_t to_step, const T *__restrict__ from, int64_t from_step,
                              int64_t ahead = 0) {
#ifdef HAS_SHUFFLE
  const int n = VECTOR_BYTES / sizeof(T) < 16 ? VECTOR_BYTES / sizeof(T) : 16;
  for (int r = 0; r < rows; r += n)
    for (int c = 0; c < columns; c += n)
      Block<T, n>::template transpose<far>(to + c * to_step + r, to_step, from + r * from_step + c, from_step, ahead);
#else
  op_transpose_ends(to, to_step, from, from_step, rows, columns, 0, 0);
#endif
}

// Not inline: it is much code, and called for many elements.
template <typename T>
static __attribute__((noinline)) void op_transpose(T *__restrict__ to, int64_t to_step, const T *__restrict__ from,
                                                   int64_t from_step, int64_t rows, int64_t columns) {
#ifdef HAS_SHUFFLE
  const int fitting = VECTOR_BYTES / sizeof(T), widest = fitting < 16 ? fitting : 16;
  const int64_t least = rows < columns ? rows : columns;
  if (least >= widest) return op_transpose_by<widest>(to, to_step, from, from_step, rows, columns);
  if (widest > 8 && least >= 8) return op_transpose_by<8>(to, to_step, from, from_step, rows, columns);
  if (widest > 4 && least >= 4) return op_transpose_by<4>(to, to_step, from, from_step, rows, columns);
#endif
  op_transpose_ends(to, to_step, from, from_step, rows, columns, 0, 0);
}
