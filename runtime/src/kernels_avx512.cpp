#include "kernels.h"

#if defined(__AVX512F__) && defined(__AVX512DQ__)
#include <immintrin.h>

namespace {
struct V {
    typedef __m512 type;
    static constexpr int lanes = 16;
    static constexpr int registers = 32;
    static constexpr int sparse_vectors = 7;  // accumulators of the one-row kernel
    static constexpr int block_vectors = 7;   // per row of the four-row kernel: 28 accumulators
    static type load(const float* p) { return _mm512_load_ps(p); }
    static type loadu(const float* p) { return _mm512_loadu_ps(p); }
    static void store(float* p, type v) { _mm512_store_ps(p, v); }
    static void storeu(float* p, type v) { _mm512_storeu_ps(p, v); }
    static type mask_load(const float* p, uint32_t m) { return _mm512_maskz_loadu_ps(__mmask16(m), p); }
    static type mask_load_over(type v, const float* p, uint32_t m) { return _mm512_mask_loadu_ps(v, __mmask16(m), p); }
    static void mask_store(float* p, type v, uint32_t m) { _mm512_mask_storeu_ps(p, __mmask16(m), v); }
    static type evens(type a, type b) {  // a0 a2 ... b0 b2 ...
        const __m512i at = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        return _mm512_permutex2var_ps(a, at, b);
    }
    static type set1(float x) { return _mm512_set1_ps(x); }
    // The value of an entry in every lane, and its offset. Both come with one load of a number: vectors can be loaded twice
    // a cycle only, and the sparse kernel is bound by that.
    static type set1_entry(const Entry* entry, uint32_t* offset) {
        static_assert(sizeof(Entry) == sizeof(uint64_t) && offsetof(Entry, offset) == 4, "value below, offset above");
        uint64_t both;
        __builtin_memcpy(&both, entry, sizeof both);
        asm("" : "+r"(both));  // else compilers broadcast from memory after all
        *offset = uint32_t(both >> 32);
        return _mm512_castsi512_ps(_mm512_set1_epi32(int(both)));
    }
    static type fma(type a, type b, type c) { return _mm512_fmadd_ps(a, b, c); }
    // *a * b + c without a register for *a. Written out, as compilers would rather load it once, and spill a sum.
    static type fma_from(const float* a, type b, type c) {
        asm("vfmadd231ps %1%{1to16%}, %2, %0" : "+v"(c) : "m"(*a), "v"(b));
        return c;
    }
    static type add(type a, type b) { return _mm512_add_ps(a, b); }
    static type sub(type a, type b) { return _mm512_sub_ps(a, b); }
    static type mul(type a, type b) { return _mm512_mul_ps(a, b); }
    static type div(type a, type b) { return _mm512_div_ps(a, b); }
    static type max(type a, type b) { return _mm512_max_ps(a, b); }  // b where either is NaN
    static type min(type a, type b) { return _mm512_min_ps(a, b); }
    static type sqrt(type a) { return _mm512_sqrt_ps(a); }
    static type abs(type a) { return _mm512_abs_ps(a); }
    static type copysign(type a, type s) {
        __m512 m = _mm512_set1_ps(-0.f);
        return _mm512_or_ps(_mm512_andnot_ps(m, a), _mm512_and_ps(m, s));
    }
    static type less(type a, type b, type yes, type no) {  // a < b ? yes : no, lane by lane
        return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
    }
    static type round(type a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    static type scale2(type a, type n) { return _mm512_scalef_ps(a, n); }
    static float sum(type a) { return _mm512_reduce_add_ps(a); }
    static float highest(type a) { return _mm512_reduce_max_ps(a); }
};
constexpr const char* kName = "avx512";
#include "kernels.inl"
}  // namespace

const Kernels* avx512_kernels() { return &table; }
#else
const Kernels* avx512_kernels() { return nullptr; }
#endif
