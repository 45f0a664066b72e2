// Executes itself repeatedly, sometimes in a child that it has just forked, and checks its
// allocations in between.
//
// executes_itself TIMES

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

static constexpr int kBlocks = 64;

static bool blocks_hold_what_was_written(unsigned seed) {
  unsigned char* blocks[kBlocks];
  for (int i = 0; i < kBlocks; i++) {
    const size_t size = 16 + (seed * 37 + static_cast<unsigned>(i) * 101) % 2000;
    blocks[i] = static_cast<unsigned char*>(malloc(size));
    if (blocks[i] == nullptr) return false;
    memset(blocks[i], i, size);
  }
  bool right = true;
  for (int i = 0; i < kBlocks; i++) {
    right &= blocks[i][0] == i && blocks[i][15] == i;
    free(blocks[i]);
  }
  return right;
}

static void execute(const char* program, int times) {
  char text[16];
  snprintf(text, sizeof text, "%d", times);
  execl(program, program, text, nullptr);
  _exit(3);
}

int main(int, char** arguments) {
  const int times = atoi(arguments[1]);
  if (!blocks_hold_what_was_written(static_cast<unsigned>(times))) return 1;
  if (times == 0) return 0;
  if (times % 4 == 0) {
    const pid_t child = fork();
    if (child == 0) execute(arguments[0], 0);
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) return 2;
  }
  usleep(static_cast<useconds_t>(times * 7919 % 20000));
  if (!blocks_hold_what_was_written(static_cast<unsigned>(times) + 1)) return 1;
  execute(arguments[0], times - 1);
}
