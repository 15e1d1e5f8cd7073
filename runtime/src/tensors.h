// Operators on plain tensors, and the passage between plain (NCHW) and tile-major maps.
#pragma once
#include "convolution.h"

struct Map {  // the shape of a feature map
    int64_t n, channels, pixels;
};

std::unique_ptr<Operator> make_to_tiles(Program& p, Map m, Ref in, Ref out);
std::unique_ptr<Operator> make_to_plain(Program& p, Map m, Ref in, Ref out);
std::unique_ptr<Operator> make_tile_mean(Program& p, Map m, Ref in, Ref out);
std::unique_ptr<Operator> make_tile_concat(Program& p, int64_t pixels, std::vector<int64_t> channels, std::vector<Ref> in,
                                           Ref out);
std::unique_ptr<Operator> make_unary(Program& p, Activation kind, int64_t n, Ref in, Ref out, float low, float high);
std::unique_ptr<Operator> make_binary(Program& p, Arithmetic kind, std::vector<int64_t> dims, std::vector<int64_t> a_step,
                                      std::vector<int64_t> b_step, Ref a, Ref b, Ref out);
std::unique_ptr<Operator> make_copy(Program& p, std::vector<int64_t> dims, std::vector<int64_t> in_step,
                                    std::vector<int64_t> out_step, int64_t in_at, int64_t out_at, Ref in, Ref out);
std::unique_ptr<Operator> make_softmax(Program& p, int64_t rows, int64_t n, Ref in, Ref out);
std::unique_ptr<Operator> make_normalise(Program& p, int64_t rows, int64_t n, Ref in, Ref scale, bool has_scale, Ref bias,
                                         bool has_bias, Ref out, float epsilon, bool centred);
std::unique_ptr<Operator> make_reduce(Program& p, int64_t outer, int64_t n, int64_t inner, int kind, Ref in, Ref out);
std::unique_ptr<Operator> make_gather(Program& p, int64_t outer, int64_t axis, int64_t inner, int64_t count, Ref data,
                                      Ref indices, Ref out);
std::unique_ptr<Operator> make_cast(Program& p, int64_t n, Ref in, Ref out);  // int64 to float
struct Axis {  // where one output coordinate of a resize comes from
    std::vector<int32_t> low, high;
    std::vector<float> weight;  // of high
};
std::unique_ptr<Operator> make_resize(Program& p, int64_t maps, int64_t height, int64_t width, Axis y, Axis x, Ref in,
                                      Ref out);
