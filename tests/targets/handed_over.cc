// A service whose threads pass blocks to each other. Requests go to the next thread, which releases
// them and answers with a block of equal size, so an address changes owners within microseconds.
// Each thread also has temporary and growing blocks. The program knows which function releases the
// blocks of each function. Arguments: threads, rounds per thread.
#include <pthread.h>
#include <sched.h>

#include <atomic>

#include "target.hpp"

using namespace target;

namespace {

constexpr size_t bytes = 96, most = 64;

// Prevents a tail call, which would remove the function from the stack.
#define STAYS asm volatile("" ::: "memory")

[[gnu::noinline]] void* new_request() {
  void* block = malloc(bytes);
  STAYS;
  return block;
}
[[gnu::noinline]] void end_request(void* block) {
  free(block);
  STAYS;
}
[[gnu::noinline]] void* new_answer() {
  void* block = malloc(bytes);
  STAYS;
  return block;
}
[[gnu::noinline]] void end_answer(void* block) {
  free(block);
  STAYS;
}
[[gnu::noinline]] void* new_temporary() {
  void* block = malloc(bytes);
  STAYS;
  return block;
}
[[gnu::noinline]] void end_temporary(void* block) {
  free(block);
  STAYS;
}
[[gnu::noinline]] void* new_buffer() {
  void* block = malloc(bytes / 2);
  STAYS;
  return block;
}
[[gnu::noinline]] void* grown_buffer(void* block) {
  void* grown = realloc(block, bytes);
  STAYS;
  return grown;
}
[[gnu::noinline]] void end_buffer(void* block) {
  free(block);
  STAYS;
}

std::atomic<void*> requests[most], answers[most];
int threads, rounds;

void* serve(void* argument) {
  long self = reinterpret_cast<long>(argument);
  long next = (self + 1) % threads;
  for (int i = 0; i < rounds; i++) {
    // Lets blocks change owners even on one processor.
    if (i % 16 == 0) sched_yield();
    if (void* unread = requests[next].exchange(new_request())) end_request(unread);
    if (void* request = requests[self].exchange(nullptr)) {
      end_request(request);
      if (void* unread = answers[self].exchange(new_answer())) end_answer(unread);
    }
    if (void* answer = answers[next].exchange(nullptr)) end_answer(answer);
    void* temporary = new_temporary();
    keep(temporary);
    end_temporary(temporary);
    if (i % 4 == 0) end_buffer(grown_buffer(new_buffer()));
  }
  return nullptr;
}

}  // namespace

int main(int count, char** arguments) {
  threads = count > 1 ? atoi(arguments[1]) : 3;
  rounds = count > 2 ? atoi(arguments[2]) : 20000;
  CHECK(threads > 0 && threads <= static_cast<int>(most));
  ready();
  pthread_t ids[most];
  for (long i = 0; i < threads; i++)
    CHECK(pthread_create(&ids[i], nullptr, serve, reinterpret_cast<void*>(i)) == 0);
  for (long i = 0; i < threads; i++) CHECK(pthread_join(ids[i], nullptr) == 0);
  for (auto& request : requests)
    if (void* block = request.exchange(nullptr)) end_request(block);
  for (auto& answer : answers)
    if (void* block = answer.exchange(nullptr)) end_answer(block);
  done();
}
