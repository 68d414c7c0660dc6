#include "layout.h"

int main(void)
{
	common();
	return outer != 0;
}
