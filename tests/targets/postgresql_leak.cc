// A function for PostgreSQL that leaks memory. Build it with -DVERSION=15, the major version of the
// server.
//
// CREATE FUNCTION forget() RETURNS integer AS 'FILE' LANGUAGE C;
//
// The declarations come from the server's fmgr.h for versions 15 to 17, because the headers require
// a different compiler. The server compares the struct below with its own before it calls the
// function.
#include <cstdint>
#include <cstdlib>
#include <cstring>

struct Magic {
  int length, version, most_arguments, most_keys, name_length, passes_words_by_value;
  char kind[32];
};

struct FunctionInfo {
  int version;
};

static const Magic magic = {sizeof(Magic), VERSION * 100, 100, 32, 64, 1, "PostgreSQL"};
static const FunctionInfo first_version = {1};

[[gnu::noinline]] static void forget_a_block() {
  void* volatile block = malloc(1234);
  memset(block, 7, 1234);
}

extern "C" {

const Magic* Pg_magic_func() { return &magic; }
const FunctionInfo* pg_finfo_forget() { return &first_version; }

uintptr_t forget(void*) {
  for (int i = 0; i < 3; i++) forget_a_block();
  return 3;
}

}
