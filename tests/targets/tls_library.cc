// Takes BYTES of static TLS.
extern "C" {
__attribute__((tls_model("initial-exec"), aligned(8))) __thread char area[BYTES];
__attribute__((visibility("default"))) char* own_area() { return area; }
}
