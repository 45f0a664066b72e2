// A library that keeps a pointer in its data or in its TLS.
static void* volatile kept;
static thread_local void* volatile kept_by_thread;

extern "C" void set_global(void* block) { kept = block; }
extern "C" void set_tls(void* block) { kept_by_thread = block; }
