#include "pool.h"

#include <chrono>

namespace {
void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    std::this_thread::yield();
#endif
}
constexpr auto kSpin = std::chrono::microseconds(60);  // longer than the gap between two layers
}  // namespace

Pool::Pool(int threads) {
    for (int i = 1; i < threads; i++) workers_.emplace_back([this, i] { serve(i); });
}

Pool::~Pool() {
    {
        std::lock_guard<std::mutex> lock(sleep_);
        stop_ = true;
        epoch_++;
    }
    wake_.notify_all();
    for (auto& w : workers_) w.join();
}

void Pool::work(int slot) {
    for (;;) {
        int64_t i = next_.fetch_add(1, std::memory_order_relaxed);
        if (i >= n_) return;
        call_(body_, i, slot);
    }
}

void Pool::serve(int slot) {
    uint64_t seen = 0;
    for (;;) {
        auto until = std::chrono::steady_clock::now() + kSpin;
        while (epoch_ == seen) {
            for (int i = 0; i < 32 && epoch_ == seen; i++) relax();
            if (epoch_ != seen || std::chrono::steady_clock::now() < until) continue;
            std::unique_lock<std::mutex> lock(sleep_);
            sleepers_++;
            wake_.wait(lock, [&] { return epoch_ != seen; });
            sleepers_--;
        }
        seen = epoch_;
        if (stop_) return;
        joined_++;
        if (open_) work(slot);
        joined_--;
    }
}

void Pool::run(int64_t n, Call call, const void* body) {
    std::unique_lock<std::mutex> own(owner_, std::defer_lock);
    if (n <= 1 || workers_.empty() || !own.try_lock()) {
        for (int64_t i = 0; i < n; i++) call(body, i, 0);
        return;
    }
    n_ = n;
    call_ = call;
    body_ = body;
    next_ = 0;
    open_ = true;
    epoch_++;
    if (sleepers_) {
        std::lock_guard<std::mutex> lock(sleep_);
        wake_.notify_all();
    }
    work(0);
    open_ = false;
    for (int i = 0; joined_ != 0; i++) i < 4096 ? relax() : std::this_thread::yield();
}
