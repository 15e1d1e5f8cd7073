#include "kernels.h"

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>

namespace {
struct V {
    typedef __m256 type;
    static constexpr int lanes = 8;
    static constexpr int registers = 16;
    static constexpr int sparse_vectors = 14;
    static constexpr int block_vectors = 3;  // 12 accumulators
    static type load(const float* p) { return _mm256_load_ps(p); }
    static type loadu(const float* p) { return _mm256_loadu_ps(p); }
    static void store(float* p, type v) { _mm256_store_ps(p, v); }
    static void storeu(float* p, type v) { _mm256_storeu_ps(p, v); }
    static __m256i mask(uint32_t m) {  // bit i of m as the sign of lane i
        const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
        return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(int(m)), bit), bit);
    }
    static type mask_load(const float* p, uint32_t m) { return _mm256_maskload_ps(p, mask(m)); }
    static type mask_load_over(type v, const float* p, uint32_t m) {
        __m256i k = mask(m);
        return _mm256_blendv_ps(v, _mm256_maskload_ps(p, k), _mm256_castsi256_ps(k));
    }
    static void mask_store(float* p, type v, uint32_t m) { _mm256_maskstore_ps(p, mask(m), v); }
    static type evens(type a, type b) {  // a0 a2 ... b0 b2 ...
        const __m256 mixed = _mm256_shuffle_ps(a, b, 0x88);
        return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(mixed), 0xd8));
    }
    static type set1(float x) { return _mm256_set1_ps(x); }
    static type set1_entry(const Entry* entry, uint32_t* offset) {
        *offset = entry->offset;
        return set1(entry->value);
    }
    static type fma(type a, type b, type c) { return _mm256_fmadd_ps(a, b, c); }
    static type fma_from(const float* a, type b, type c) { return fma(set1(*a), b, c); }
    static type add(type a, type b) { return _mm256_add_ps(a, b); }
    static type sub(type a, type b) { return _mm256_sub_ps(a, b); }
    static type mul(type a, type b) { return _mm256_mul_ps(a, b); }
    static type div(type a, type b) { return _mm256_div_ps(a, b); }
    static type max(type a, type b) { return _mm256_max_ps(a, b); }
    static type min(type a, type b) { return _mm256_min_ps(a, b); }
    static type sqrt(type a) { return _mm256_sqrt_ps(a); }
    static type abs(type a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.f), a); }
    static type copysign(type a, type s) {
        __m256 m = _mm256_set1_ps(-0.f);
        return _mm256_or_ps(_mm256_andnot_ps(m, a), _mm256_and_ps(m, s));
    }
    static type less(type a, type b, type yes, type no) {
        return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
    }
    static type round(type a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    static type scale2(type a, type n) {  // a * 2^n in two steps, so that no exponent overflows on the way
        __m256i i = _mm256_cvtps_epi32(n), h = _mm256_srai_epi32(i, 1), r = _mm256_sub_epi32(i, h);
        const __m256i bias = _mm256_set1_epi32(127);
        a = _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(h, bias), 23)));
        return _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(r, bias), 23)));
    }
    static float sum(type a) {
        __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
        s = _mm_add_ps(s, _mm_movehl_ps(s, s));
        return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
    }
    static float highest(type a) {
        __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
        s = _mm_max_ps(s, _mm_movehl_ps(s, s));
        return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
    }
};
constexpr const char* kName = "avx2";
#include "kernels.inl"
}  // namespace

const Kernels* avx2_kernels() { return &table; }
#else
const Kernels* avx2_kernels() { return nullptr; }
#endif
