// Blocks that only functions of the C library read and write, with one function for each pattern.
// The program is compiled with access callbacks and linked with the access runtime. It also checks
// the effects of the library functions.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>

#include <atomic>

#include "target.hpp"

using namespace target;

#define PLANTED [[gnu::noinline]] static

static char* block_of(size_t size) {
  void* block = malloc(size);
  keep(block);
  return static_cast<char*>(block);
}
// Returns a size unknown to the compiler, so that the compiler does not replace the calls with
// inline code.
static size_t some(size_t size) {
  asm volatile("" : "+r"(size));
  return size;
}
static char outside[4096];
static int pair[2];

// Written by memset, and read by memcpy: bytes 100 to 300 of 400.
PLANTED void filled() {
  char* block = block_of(400);
  CHECK(memset(block + 100, 7, some(200)) == block + 100);
  CHECK(memcpy(outside, block + 100, some(200)) == outside);
  CHECK(outside[0] == 7 && outside[199] == 7);
  free(block);
}
// Written by memmove onto itself: all of 64 bytes.
PLANTED void moved() {
  char* block = block_of(64);
  CHECK(memmove(block, outside, some(48)) == block);
  CHECK(memmove(block + 16, block, some(48)) == block + 16);
  CHECK(block_of(1) != nullptr);
  free(block);
}
// Written by read, and sent by write: half of 1000 bytes. An empty read and a failed read write
// nothing.
PLANTED void received() {
  char* block = block_of(1000);
  CHECK(write(pair[0], outside, some(500)) == 500);
  CHECK(read(pair[1], block, some(900)) == 500);
  errno = 0;
  CHECK(read(-1, block, some(1000)) == -1 && errno == EBADF);
  CHECK(write(pair[1], nullptr, some(1)) == -1 && errno == EFAULT);
  CHECK(write(pair[1], block, some(500)) == 500);
  CHECK(recv(pair[0], outside, some(500), 0) == 500);
  free(block);
}
// Written by recv, and sent by send: a quarter of 1000 bytes.
PLANTED void sent() {
  char* block = block_of(1000);
  CHECK(send(pair[0], outside, some(250), 0) == 250);
  CHECK(recv(pair[1], block, some(1000), 0) == 250);
  CHECK(send(pair[1], block, some(250), 0) == 250);
  CHECK(read(pair[0], outside, some(250)) == 250);
  free(block);
}
// Written only by memset: usage 0.
PLANTED void cleared() {
  char* block = block_of(2000);
  memset(block, 0, some(2000));
  free(block);
}
// Measured by strlen and compared by memcmp: 10 of 40 bytes.
PLANTED void measured() {
  char* block = block_of(40);
  memset(block, 'x', some(9));
  memset(block + 9, 0, some(1));
  CHECK(strlen(block) == some(9));
  CHECK(memcmp(block, "xxxxxxxxx", some(10)) == 0);
  free(block);
}

// The signal handler calls the functions while the thread is inside them.
static char* of_handler;
static volatile sig_atomic_t handled;
static void on_signal(int) {
  int before = errno;
  memset(of_handler, handled, some(8));
  memcpy(outside, of_handler, some(8));
  handled = handled + 1;
  errno = before;
}
static std::atomic<bool> is_over;
PLANTED void interrupted() {
  of_handler = block_of(16);
  struct sigaction action = {};
  action.sa_handler = on_signal;
  CHECK(sigaction(SIGUSR1, &action, nullptr) == 0);
  pthread_t me = pthread_self(), other;
  CHECK(pthread_create(
            &other, nullptr,
            [](void* target) -> void* {
              while (!is_over) {
                pthread_kill(*static_cast<pthread_t*>(target), SIGUSR1);
                usleep(20);
              }
              return nullptr;
            },
            &me) == 0);
  char own[64];
  while (handled < 200) {
    errno = 77;
    memset(own, 1, some(sizeof own));
    memcpy(own + 32, own, some(32));
    CHECK(errno == 77 && own[63] == 1);
  }
  // This call is not restarted after a signal handler.
  int result = static_cast<int>(read(pair[1], own, some(1)));
  CHECK(result == -1 && errno == EINTR);
  is_over = true;
  CHECK(pthread_join(other, nullptr) == 0);
  free(of_handler);
}

// A thread is cancelled while it reads, so its stack is unwound through the wrapper.
static std::atomic<int> unwound;
struct Guard {
  ~Guard() { unwound++; }
};
PLANTED void cancelled() {
  pthread_t reader;
  CHECK(pthread_create(
            &reader, nullptr,
            [](void*) -> void* {
              Guard guard;
              char byte;
              if (read(pair[1], &byte, some(1)) != 12345) unwound = 100;
              return nullptr;
            },
            nullptr) == 0);
  usleep(1000);
  CHECK(pthread_cancel(reader) == 0);
  void* result;
  CHECK(pthread_join(reader, &result) == 0);
  CHECK(result == PTHREAD_CANCELED && unwound == 1);
  unwound = 0;
}

static void all() {
  handled = 0;
  is_over = false;
  filled();
  moved();
  received();
  sent();
  cleared();
  measured();
  interrupted();
  cancelled();
}

int main() {
  CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
  ready();
  all();
  done();
  all();
}
