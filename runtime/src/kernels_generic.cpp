// Kernels for any processor: vectors of four as the compiler maps them (SSE2, NEON, or plain scalars).
#include <math.h>

#include "kernels.h"

namespace {
struct V {
    typedef float type __attribute__((vector_size(16)));
    typedef float loose __attribute__((vector_size(16), aligned(4), may_alias));
    typedef int ints __attribute__((vector_size(16)));
    static constexpr int lanes = 4;
    static constexpr int registers = 16;
    static constexpr int sparse_vectors = 8;
    static constexpr int block_vectors = 3;
    static type load(const float* p) { return *reinterpret_cast<const loose*>(p); }
    static type loadu(const float* p) { return *reinterpret_cast<const loose*>(p); }
    static void store(float* p, type v) { *reinterpret_cast<loose*>(p) = v; }
    static void storeu(float* p, type v) { *reinterpret_cast<loose*>(p) = v; }
    static type mask_load(const float* p, uint32_t m) { return mask_load_over(type{0, 0, 0, 0}, p, m); }
    static type mask_load_over(type v, const float* p, uint32_t m) {
        for (int i = 0; i < lanes; i++)
            if (m >> i & 1) v[i] = p[i];
        return v;
    }
    static void mask_store(float* p, type v, uint32_t m) {
        for (int i = 0; i < lanes; i++)
            if (m >> i & 1) p[i] = v[i];
    }
    static type evens(type a, type b) { return type{a[0], a[2], b[0], b[2]}; }
    static type set1(float x) { return type{x, x, x, x}; }
    static type set1_entry(const Entry* entry, uint32_t* offset) {
        *offset = entry->offset;
        return set1(entry->value);
    }
    static type fma(type a, type b, type c) { return a * b + c; }
    static type fma_from(const float* a, type b, type c) { return fma(set1(*a), b, c); }
    static type add(type a, type b) { return a + b; }
    static type sub(type a, type b) { return a - b; }
    static type mul(type a, type b) { return a * b; }
    static type div(type a, type b) { return a / b; }
    static type pick(ints m, type yes, type no) { return (type)((m & (ints)yes) | (~m & (ints)no)); }
    static type max(type a, type b) { return pick(a > b, a, b); }
    static type min(type a, type b) { return pick(a < b, a, b); }
    static type sqrt(type a) { return type{sqrtf(a[0]), sqrtf(a[1]), sqrtf(a[2]), sqrtf(a[3])}; }
    static type abs(type a) { return type{fabsf(a[0]), fabsf(a[1]), fabsf(a[2]), fabsf(a[3])}; }
    static type copysign(type a, type s) {
        return type{copysignf(a[0], s[0]), copysignf(a[1], s[1]), copysignf(a[2], s[2]), copysignf(a[3], s[3])};
    }
    static type less(type a, type b, type yes, type no) { return pick(a < b, yes, no); }
    static type round(type a) { return type{rintf(a[0]), rintf(a[1]), rintf(a[2]), rintf(a[3])}; }
    static type scale2(type a, type n) {
        for (int i = 0; i < lanes; i++) a[i] = ldexpf(a[i], n[i] == n[i] ? int(n[i]) : 0);
        return a;
    }
    static float sum(type a) { return (a[0] + a[2]) + (a[1] + a[3]); }
    static float highest(type a) {
        float x = a[0] > a[2] ? a[0] : a[2], y = a[1] > a[3] ? a[1] : a[3];
        return x > y ? x : y;
    }
};
constexpr const char* kName = "generic";
#include "kernels.inl"
}  // namespace

const Kernels* generic_kernels() { return &table; }
