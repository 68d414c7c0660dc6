// clang: -mcpu=v3
#include "cpu.h"
