/* What the C compilers and gdb work on. */
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct node { struct node *left, *right; int key; };

static struct node *insert(struct node *n, int key)
{
	if (!n) {
		n = calloc(1, sizeof *n);
		n->key = key;
	} else if (key < n->key)
		n->left = insert(n->left, key);
	else if (key > n->key)
		n->right = insert(n->right, key);
	return n;
}

static int depth(const struct node *n)
{
	int l = n ? depth(n->left) : -1, r = n ? depth(n->right) : -1;
	return 1 + (l > r ? l : r);
}

static jmp_buf back;

static void deep(int n)
{
	if (n == 0)
		longjmp(back, 7);
	deep(n - 1);
}

static int compare(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

int main(void)
{
	struct node *root = NULL;
	for (int i = 0; i < 5000; i++)
		root = insert(root, i * 7919 % 5003);
	char *words[] = { "the", "quick", "brown", "fox", "jumps" };
	qsort(words, 5, sizeof *words, compare);
	int jumped = setjmp(back);
	if (!jumped)
		deep(100);
	double sum = 0;
	for (int i = 1; i < 1000; i++)
		sum += sin(i) / sqrt(i);
	printf("%d %s %d %.9f\n", depth(root), words[0], jumped, sum);
	return 5;
}
