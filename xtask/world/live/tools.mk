# Functions over many words, many targets with four jobs at a time, a failure.
digits := 0 1 2 3 4 5 6 7 8 9
hundreds := $(foreach a,$(digits),$(foreach b,$(digits),$(foreach c,$(digits),$(foreach d,$(digits),$a$b$c$d))))
palindromes := $(foreach a,$(digits),$(foreach b,$(digits),$(filter $a$b$b$a,$(hundreds))))
names := $(shell seq 1 2500)
all: sum.txt fails
sum.txt: $(addsuffix .part,$(names))
	@cat $^ | awk '{ s += $$1 } END { print s }' > $@; cat $@
	@echo "$(words $(palindromes)) $(sort $(patsubst %7,<%>,$(filter %7,$(palindromes))))"
%.part:
	@echo $$(($* * $*)) > $@
fails: sum.txt
	@exit 3
