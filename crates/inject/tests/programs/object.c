// A small shared object: NUMBER comes from the command line.
int answer(int x) { return x + NUMBER; }
