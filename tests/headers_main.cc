// The program that carries the tests' shared headers (tests/CMakeLists.txt). It does nothing.
int main() { return 0; }
