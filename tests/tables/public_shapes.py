"""Small files in the shapes of public sets, named after them: text, and for tables how pandas reads them."""

# ruff: noqa: E501  (a line for each file)

import csv

TAB = {"sep": "\t", "quoting": csv.QUOTE_NONE}

PUBLIC_TABLES = {
    "nsmc/ratings_train.txt": ("id\tdocument\tlabel\n9976970\t아 더빙.. 진짜 짜증나네요 목소리\t0\n3819312\t\"흠\"...포스터\t1\n", TAB),
    "korsts/sts-train.tsv": ("genre\tfilename\tscore\tsentence1\tsentence2\nmain\tMSR\t5.000\t비행기가 \"이륙\"한다.\t떴다.\n", TAB),
    "kornli/multinli.train.ko.tsv": ("sentence1\tsentence2\tgold_label\n그리고 그는\t그는 \"말\"했다\tneutral\n", TAB),
    "glue/SST-2/train.tsv": ("sentence\tlabel\nhide new secretions \t0\ncontains no wit , only labored gags \t0\n", TAB),
    "glue/MRPC/msr_paraphrase_train.txt": ("\ufeffQuality\t#1 ID\t#1 String\n1\t702876\tAmrozi accused \" the witness \" .\n", TAB),
    "glue/QNLI/dev.tsv": ("index\tquestion\tsentence\tlabel\n0\tWhat came into force?\tAs of that day, \"it\"\tentailment\n", TAB),
    "ag_news/train.csv": ('Class Index,Title,Description\n"3","Wall St. Bears (Reuters)","Reuters - a ""short"" seller, or two"\n', {}),
    "dbpedia/train.csv": ('label,title,content\n1,"E. D. Abbott Ltd"," Abbott of Farnham E D Abbott Limited was, a maker."\n', {}),
    "yelp_review/train.csv": ('stars,text\n"5","dr. goldberg offers everything.\\n\\nhe\'s nice, ""easy"""\n"2","Unfortunately\n\nno"\n', {}),
    "amazon_reviews/train.csv": ('label,title,text\n"2","Great CD","My, ""lovely"" Pat"\n"1","","no title"\n', {}),
    "imdb/IMDB Dataset.csv": ('review,sentiment\n"One of the reviewers.<br /><br />The ""first"", thing",positive\nok,negative\n', {}),
    "jigsaw/train.csv": ('id,comment_text,toxic,severe_toxic\n0000997932d777bf,"Explanation\nWhy the edits, made",0,0\n000103f0d9cfb60f,ok,1,0\n', {}),
    "quora/train.csv": ('"id","qid1","question1","question2","is_duplicate"\n"0","1","What is, ""it""?","Why?","0"\n', {}),
    "paws/train.tsv": ("id\tsentence1\tsentence2\tlabel\n1\tIn Paris , in 1560 , he\tIn 1560 , he\t0\n", TAB),
    "sick/SICK_train.txt": ("pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n1\tA group\tA group, too\t4.5\tNEUTRAL\n", TAB),
    "cola/in_domain_train.tsv": ("code\tlabel\tstar\tsentence\ngj04\t1\t\tOur friends won't buy this analysis.\ngj04\t0\t*\tThe more\n", TAB),
    "cc100-like/europarl.tsv": ("de\ten\nWiederaufnahme der Sitzungsperiode\tResumption of the session\n", TAB),
    "tweet_eval/train.csv": ("text,label\n\"QT @user In the original draft of the 7th book, Remus \\u002c 🧙\",2\n", {}),
    "hate_speech_ko/train.tsv": ("comments\tcontain_gender_bias\thate\n(현재 호텔주인 심정) 아18 난\tFalse\thate\n", TAB),
    "unsmile/unsmile_train_v1.0.tsv": ("문장\t여성/가족\t남성\t악플/욕설\n일안하는 시간은 쉬고싶어서\t1\t0\t0\n", TAB),
    "question_pairs_ko/kor_pair.csv": ("id,qid1,qid2,question1,question2,is_duplicate\n0,1,2,1000일 만난 여자친구,헤어진, 0\n", {}),
    "chatbot_ko/ChatbotData.csv": ('Q,A,label\n12시 땡!,하루가 또 가네요.,0\n"3박4일, 놀러가고 싶다",여행은 언제나 좋죠.,0\n', {}),
    "kaggle/spam.csv": ('v1,v2,,,\nham,"Go until jurong point, crazy..",,,\nspam,Free entry,,,\n', {}),
    "excel-de/umfrage.csv": ("sep=;\r\nText;Note\r\nGut, sehr gut;1,5\r\n", {"sep": ";", "skiprows": 1}),
    "excel-ko/설문.csv": ("\ufeff번호,의견\r\n1,\"좋아요, 정말\r\n최고\"\r\n", {}),
    "sheets/survey.tsv": ("text\tlabel\r\ngood\tpos\r\n\tneg\r\n", TAB),
    "movielens/movies.csv": ('movieId,title,genres\n1,Toy Story (1995),Adventure|Animation\n11,"American President, The (1995)",Comedy\n', {}),
    "stackoverflow/train.csv": ('Id,Body,Y\n34552656,"<p>I\'m, ""new""</p>\n\n<pre>a,b,c\n</pre>",LQ_CLOSE\n', {}),
    "pubmed/train.csv": ("text;label\nRandomised; trial\n", {"sep": ";"}),
    "r-export/data.csv": ('"","text","label"\n"1","a","pos"\n"2","NA","neg"\n', {}),
}  # fmt: skip


PUBLIC_RECORDS = {
    "snli/snli_1.0_dev.jsonl": '{"annotator_labels": ["neutral", "entailment"], "gold_label": "neutral", "sentence1": "Two", "sentence2": "The"}\n',
    "boolq/train.jsonl": '{"question": "is it", "title": "A", "answer": true, "passage": "It \\u00e9 is."}\n{"question": "b", "title": "B", "answer": false, "passage": ""}\n',
    "copa/train.jsonl": '{"premise": "p", "choice1": "a", "choice2": "b", "question": "cause", "label": 0, "idx": 0}\n',
    "klue/ynat-v1.1_dev.json": '[\n  {\n    "guid": "ynat-v1_dev_00000",\n    "title": "5억원 무이자 융자는 되고",\n    "label": "생활문화",\n    "annotations": {"annotators": ["a"], "annotations": {"first": "x"}}\n  }\n]\n',
    "klue/sts-v1.1_dev.json": '[{"guid": "klue-sts-v1_dev_00000", "sentence1": "무엇보다", "sentence2": "무엇", "labels": {"label": 4.9, "real-label": 4.857142857142857, "binary-label": 1}}]',
    "amazon/reviews_Books_5.json": '{"reviewerID": "A10", "helpful": [0, 0], "reviewText": "Spiritually, \\"good\\"", "overall": 5.0}\n',
    "yelp/review.json": '{"review_id": "lWC", "stars": 2, "text": "Total bill\\nfor this"}\n{"review_id": "8bF", "stars": 5, "text": "ok", "useful": 3}\n',
    "twitter/tweets.ndjson": '{"id": 850007368138018817, "text": "RT @x: \\ud83d\\ude00", "user": {"id": 1, "name": "n"}}\n',
    "goemotions/train.jsonl": '{"text": "My favourite", "labels": [27], "id": "eebbqej"}\n',
    "bge/train.jsonl": '{"query": "q", "pos": ["a"], "neg": ["b", "c"]}\n',
    "msmarco/collection.jsonl": '{"pid": 0, "passage": "The presence of"}\n\n{"pid": 1, "passage": "The"}\n',
    "hub/datasets-server.json": '[{"text": "a", "label": null}, {"text": "b", "label": 1}]',
}
