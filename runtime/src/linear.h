// Matrix products over plain, row-major tensors.
#pragma once
#include "convolution.h"

std::unique_ptr<Operator> make_linear(Program& p, std::shared_ptr<Weights> weights, int64_t tokens, Ref in, Ref out,
                                      const Finish& finish);
// out[b] = alpha * a[b] b[b]; the offsets say where each product's matrices start, in floats.
std::unique_ptr<Operator> make_matmul(Program& p, int64_t m, int64_t k, int64_t n, Ref a, Ref b, Ref out,
                                      std::vector<int64_t> a_at, std::vector<int64_t> b_at);
