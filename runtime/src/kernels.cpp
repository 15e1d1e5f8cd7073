#include "kernels.h"

#include <cstring>

namespace {

bool has_avx512() {
#if defined(__x86_64__) || defined(__i386__)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
#else
    return false;
#endif
}

bool has_avx2() {
#if defined(__x86_64__) || defined(__i386__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return false;
#endif
}

}  // namespace

const Kernels* kernels_for(const char* name) {
    bool any = name[0] == 0;
    if ((any || !std::strcmp(name, "avx512")) && has_avx512() && avx512_kernels()) return avx512_kernels();
    if ((any || !std::strcmp(name, "avx2")) && has_avx2() && avx2_kernels()) return avx2_kernels();
    if (any || !std::strcmp(name, "generic")) return generic_kernels();
    return nullptr;
}
