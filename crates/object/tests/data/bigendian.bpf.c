// clang: -target bpfeb
#include "cpu.h"
