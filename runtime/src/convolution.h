// Convolutions and windows over tile-major maps.
#pragma once
#include "geometry.h"

struct Finish {  // what follows the sums: a residual, then a clamp or another activation
    Ref residual = -1;
    bool has_residual = false;
    float low, high;
    Activation activation = Activation::none;
    float alpha = 0, beta = 0;
};

std::unique_ptr<Operator> make_convolution(Program& p, const Geometry& g, std::shared_ptr<Weights> weights, Ref in,
                                           Ref out, const Finish& finish);
std::unique_ptr<Operator> make_window(Program& p, const Geometry& g, Window kind, Ref in, Ref out,
                                      std::vector<float> weights, std::vector<float> bias, bool count_padding,
                                      int pad_bottom, int pad_right, const Finish& finish);
