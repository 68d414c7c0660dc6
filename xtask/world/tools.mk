# Real work for make: pattern rules, functions, variables, jobs at a time.
names := $(shell seq 1 20)
all: sum.txt
	@echo "$(words $(names)) $(sort $(filter 1%,$(names))) $(patsubst %,<%>,$(firstword $(names)))"
	@cat $<
%.part:
	@echo $$(($* * $*)) > $@
sum.txt: $(addsuffix .part,$(names))
	@cat $^ | awk '{ s += $$1 } END { print s }' > $@
fails:
	@exit 3
