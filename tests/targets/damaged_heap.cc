// Overwrites the header of a block, as a write past the end of the previous block would, and then
// waits.
#include <unistd.h>

#include <cstdlib>
#include <cstring>

int main() {
  char* blocks[10];
  for (char*& block : blocks) block = static_cast<char*>(malloc(100));
  memset(blocks[4] + 100, 0x41, 12);
  if (write(1, "ready\n", 6) != 6) return 1;
  char c;
  while (read(0, &c, 1) == 1) {
  }
  _exit(0);
}
