// A model at fixed shapes: operators in order, over one planned block of memory.
#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels.h"
#include "pool.h"
#include "weights.h"

// Where a tensor lies: a byte offset into the arena, or -(k+1) for constant k.
typedef int64_t Ref;

// Arrays of the caller and where they lie in the arena: address and bytes.
typedef std::vector<std::pair<Ref, std::pair<const void*, size_t>>> Inputs;
typedef std::vector<std::pair<Ref, std::pair<void*, size_t>>> Outputs;

// What one run owns. Several runs of a program may be under way, each with its own.
struct Workspace {
    Floats arena;
    Floats shared;                // scratch of one operator, seen by all threads
    std::vector<Floats> scratch;  // scratch of each thread
};

struct Context {
    const Kernels& k;
    Pool& pool;
    Workspace& w;
    const std::vector<Floats>& constants;

    float* out(Ref r) const { return w.arena.get() + r / 4; }
    const float* in(Ref r) const { return r < 0 ? constants[size_t(-r - 1)].get() : w.arena.get() + r / 4; }
};

struct Operator {
    std::string name;         // the node this came from
    std::string kind;
    double flops = 0;         // useful ones: twice the products with non-zero weights
    double density = 1;
    size_t shared_floats = 0, scratch_floats = 0;
    double seconds = 0;       // of the fastest profiled run
    virtual ~Operator() = default;
    virtual void run(const Context& c) = 0;
};

class Program {
public:
    Program(std::shared_ptr<Pool> pool, const Kernels* kernels, size_t arena_bytes);

    Ref constant(const float* data, size_t n);
    void add(std::unique_ptr<Operator> op);
    // Throws when [r, r + n floats) is not inside the arena, or the constant is smaller.
    void check(Ref r, double n, bool writes) const;

    void run(const Inputs& inputs, const Outputs& outputs, bool profile);

    // Runs parts of a batch, each a run of its own, shared out over the threads of `pool`: the arrays hold `parts`
    // equal pieces one after the other.
    void run_parts(Pool& pool, int64_t parts, const Inputs& inputs, const Outputs& outputs);

    // The same for a program cut in two. This one runs on the images of a part one by one and leaves `floats` numbers at
    // `between`; `tail` runs once on those of all `images`, which it finds at `into`.
    void run_cut(Program& tail, Pool& pool, int64_t parts, int64_t images, const Inputs& inputs, Ref between, Ref into,
                 size_t floats, const Outputs& outputs);

    const Kernels& kernels() const { return *kernels_; }
    Pool& pool() { return *pool_; }
    std::vector<std::unique_ptr<Operator>> operators;
    size_t arena_bytes() const { return arena_bytes_; }
    size_t memory() const;

private:
    std::unique_ptr<Workspace> take();
    void give(std::unique_ptr<Workspace> w);
    std::shared_ptr<Pool> pool_;
    const Kernels* kernels_;
    size_t arena_bytes_;
    size_t shared_ = 0, scratch_ = 0;
    std::vector<Floats> constants_;
    std::vector<size_t> constant_size_;
    std::mutex lock_, profile_lock_;
    std::vector<std::unique_ptr<Workspace>> free_;
};
