// A pool of threads that share the items of one loop at a time.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

class Pool {
public:
    explicit Pool(int threads);
    ~Pool();
    int threads() const { return int(workers_.size()) + 1; }

    // Calls body(item, slot) for items 0..n-1; slot < threads() tells the threads apart. When another caller holds
    // the pool the items run here, one after the other. The body must not throw.
    template <class Body>
    void each(int64_t n, const Body& body) {
        run(n, [](const void* b, int64_t i, int slot) { (*static_cast<const Body*>(b))(i, slot); }, &body);
    }

private:
    typedef void (*Call)(const void*, int64_t, int);
    void run(int64_t n, Call call, const void* body);
    void serve(int slot);
    void work(int slot);

    std::vector<std::thread> workers_;
    std::mutex owner_;                  // held by the caller whose loop is running
    std::mutex sleep_;
    std::condition_variable wake_;
    std::atomic<uint64_t> epoch_{0};    // counts loops
    std::atomic<bool> open_{false};     // a loop may be joined
    std::atomic<int> joined_{0};        // workers inside the loop
    std::atomic<int> sleepers_{0};
    std::atomic<int64_t> next_{0};
    std::atomic<bool> stop_{false};
    int64_t n_ = 0;
    Call call_ = nullptr;
    const void* body_ = nullptr;
};
