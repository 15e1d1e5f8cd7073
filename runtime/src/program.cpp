#include "program.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <type_traits>

Program::Program(std::shared_ptr<Pool> pool, const Kernels* kernels, size_t arena_bytes)
    : pool_(std::move(pool)), kernels_(kernels), arena_bytes_(arena_bytes) {}

Ref Program::constant(const float* data, size_t n) {
    Floats f = aligned_floats(n + kTile);
    if (n) std::memcpy(f.get(), data, n * 4);
    constants_.push_back(std::move(f));
    constant_size_.push_back(n);
    return -Ref(constants_.size());
}

void Program::check(Ref r, double n, bool writes) const {
    if (r < 0) {
        if (writes || size_t(-r - 1) >= constants_.size() || n > double(constant_size_[size_t(-r - 1)]))
            throw std::invalid_argument("a constant is smaller than its use");
    } else if (r % 64 || double(r) + n * 4 > double(arena_bytes_)) {
        throw std::invalid_argument("a tensor lies outside the planned memory");
    }
}

void Program::add(std::unique_ptr<Operator> op) {
    shared_ = std::max(shared_, op->shared_floats);
    scratch_ = std::max(scratch_, op->scratch_floats);
    operators.push_back(std::move(op));
}

std::unique_ptr<Workspace> Program::take() {
    {
        std::lock_guard<std::mutex> lock(lock_);
        if (!free_.empty()) {
            auto w = std::move(free_.back());
            free_.pop_back();
            return w;
        }
    }
    auto w = std::make_unique<Workspace>();
    w->arena = aligned_floats(arena_bytes_ / 4 + kTile);
    w->shared = aligned_floats(shared_ + kTile);
    for (int i = 0; i < pool_->threads(); i++) w->scratch.push_back(aligned_floats(scratch_ + kTile));
    return w;
}

void Program::give(std::unique_ptr<Workspace> w) {
    std::lock_guard<std::mutex> lock(lock_);
    free_.push_back(std::move(w));
}

size_t Program::memory() const {
    size_t n = arena_bytes_ + 4 * (shared_ + scratch_ * size_t(pool_->threads()));
    for (size_t c : constant_size_) n += 4 * c;
    return n;
}

void Program::run(const Inputs& inputs, const Outputs& outputs, bool profile) {
    auto w = take();
    struct Return {
        Program* p;
        std::unique_ptr<Workspace>& w;
        ~Return() { p->give(std::move(w)); }
    } back{this, w};
    Context c{*kernels_, *pool_, *w, constants_};
    for (auto& i : inputs) {
        check(i.first, double(i.second.second) / 4, true);
        std::memcpy(c.out(i.first), i.second.first, i.second.second);
    }
    for (auto& op : operators) {
        if (!profile) {
            op->run(c);
            continue;
        }
        auto t = std::chrono::steady_clock::now();
        op->run(c);
        std::chrono::duration<double> d = std::chrono::steady_clock::now() - t;
        std::lock_guard<std::mutex> lock(profile_lock_);
        op->seconds = op->seconds > 0 ? std::min(op->seconds, d.count()) : d.count();
    }
    for (auto& o : outputs) {
        check(o.first, double(o.second.second) / 4, false);
        std::memcpy(o.second.first, c.in(o.first), o.second.second);
    }
}

namespace {

// Piece i of n equal ones of every array.
template <class Arrays>
Arrays piece_of(Arrays arrays, int64_t i, int64_t n) {
    for (auto& x : arrays) {
        x.second.second /= size_t(n);
        typedef std::conditional_t<std::is_same<Arrays, Inputs>::value, const char, char> Byte;
        x.second.first = static_cast<Byte*>(x.second.first) + size_t(i) * x.second.second;
    }
    return arrays;
}

// Calls body(part, slot) for all parts; what one of them throws is thrown here when all have ended.
template <class Body>
void each_part(Pool& pool, int64_t parts, const Body& body) {
    if (parts < 1) throw std::invalid_argument("parts: at least 1");
    std::mutex lock;
    std::exception_ptr failed;
    pool.each(parts, [&](int64_t i, int slot) {
        try {
            body(i, slot);
        } catch (...) {
            std::lock_guard<std::mutex> hold(lock);
            failed = std::current_exception();
        }
    });
    if (failed) std::rethrow_exception(failed);
}

}  // namespace

void Program::run_parts(Pool& pool, int64_t parts, const Inputs& inputs, const Outputs& outputs) {
    each_part(pool, parts, [&](int64_t i, int) { run(piece_of(inputs, i, parts), piece_of(outputs, i, parts), false); });
}

void Program::run_cut(Program& tail, Pool& pool, int64_t parts, int64_t images, const Inputs& inputs, Ref between,
                      Ref into, size_t floats, const Outputs& outputs) {
    if (images < 1) throw std::invalid_argument("images: at least 1");
    const size_t bytes = floats * sizeof(float);
    std::vector<Floats> maps(size_t(pool.threads()));  // what passes from head to tail, for each thread
    each_part(pool, parts, [&](int64_t i, int slot) {
        Floats& map = maps[size_t(slot)];
        if (!map) map = aligned_floats(floats * size_t(images));
        for (int64_t image = 0; image < images; image++)
            run(piece_of(inputs, i * images + image, parts * images), {{between, {map.get() + size_t(image) * floats, bytes}}}, false);
        tail.run({{into, {map.get(), bytes * size_t(images)}}}, piece_of(outputs, i, parts), false);
    });
}
